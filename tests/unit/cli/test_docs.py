"""The commands in docs/command-line.md, in their order, on a step that is there."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

import click

from outfall.capabilities import CleanUpContext, SupportsTarget
from outfall.cli.commands.app import outfall
from outfall.file import FileSink
from outfall.testing import LocalDriver
from tests.unit.support.command import done, rows
from tests.unit.support.spark_checkpoint import MadeCheckpoint

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
BLOCKS = re.findall(r"^(<!-- not executed: [^\n]+ -->\n)?```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    driver = LocalDriver(FileSink(f"{tmp_path}/flights"), f"{tmp_path}/chk/flights")
    checkpoint = MadeCheckpoint(tmp_path / "chk" / "flights")
    for epoch in range(3):
        checkpoint.whole(epoch)
        driver.run_epoch(epoch, rows(epoch))
    # What `replay` brings back.
    letter = {"row": '{"id": 1}', "reason": "bad", "step": "sink", "time": "2026-11-23T00:00:00Z"}
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "letters.jsonl").write_text(json.dumps(letter) + "\n")
    lines = [line for reason, block in BLOCKS if not reason for line in block.splitlines()]
    for line in lines:
        program, *arguments = shlex.split(line.replace("/data/", f"{tmp_path}/"), comments=True)
        assert program == "outfall"
        done(*arguments)
    there = set(outfall.list_commands(click.Context(outfall)))
    assert {shlex.split(line)[1] for line in lines} == there - {"accept", "drain", "watch", "export"}


def test_the_output_of_the_page_is_that_of_the_command(tmp_path: Path) -> None:
    driver = LocalDriver(FileSink(f"{tmp_path}/flights"), f"{tmp_path}/chk/flights")
    driver.run_epoch(0, rows(0))
    shown = done("status", f"{tmp_path}/chk/flights")
    example = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    names = [line.split()[0] for line in shown.splitlines() if line.startswith("  ") and not line.strip()[0].isdigit()]
    assert names == [line.split()[0] for line in example.splitlines() if line.startswith("  ") and line[2] != " "]
    (heading,) = (line.split() for line in shown.splitlines() if line.startswith("epoch "))
    assert [*heading, "retries"] == next(line.split() for line in example.splitlines() if line.startswith("epoch "))


def test_the_options_file_of_the_page_is_one() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert tomllib.loads(text)["archive"]["sink"] == "file"


def test_what_the_page_says_of_sinks_is_true() -> None:
    from outfall.kinesis import FirehoseSink, KinesisSink
    from outfall.postgres import PostgresSink
    from outfall.s3 import S3Sink

    whole, growing = FileSink("/a"), FileSink("/a", parts=1)
    postgres, s3 = PostgresSink("dbname=x", "t"), S3Sink("bucket")
    lists = {"file": whole, "postgres": postgres, "s3": s3}
    assert {name for name, sink in lists.items() if has_its_own("find_leftovers", sink)} == {"file", "postgres", "s3"}
    dead = CleanUpContext("sink", "00", 1, final=True, states=dict, writer_states=tuple)
    assert list(growing.find_leftovers(dead) or ()) == []
    for sink in (whole, growing, postgres, s3, FileSink("memory://a"), KinesisSink("s"), FirehoseSink("d")):
        assert has_its_own("check_connection", sink)


def has_its_own(method: str, sink: Any) -> bool:
    return getattr(type(getattr(sink, "delegate", sink)), method) is not getattr(SupportsTarget, method)
