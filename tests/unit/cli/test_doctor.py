"""`outfall doctor`, and the options that name a sink."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from outfall.cli.commands.arguments import ChosenSink, read_options
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.testing import crash_at
from tests.unit.support.command import FileStep, done, importable, parsed, run, tree


@pytest.fixture
def step(tmp_path: Path) -> FileStep:
    return FileStep(tmp_path)


def results(*arguments: object, code: int = 0) -> dict[str, Any]:
    """The results of an examination by what they are about, with their texts."""
    ended = run("doctor", *arguments, "--json")
    assert ended.exit_code == code, ended.output
    return {finding["about"]: (finding["result"], finding["text"]) for finding in json.loads(ended.stdout)}


def test_a_sink_that_could_write_passes_and_nothing_stays(step: FileStep, tmp_path: Path) -> None:
    found = results(*step.sink)
    assert {about: result for about, (result, _) in found.items()} == {
        "options": "ok", "sink": "ok", "guarantee": "ok", "requires": "note", "batches": "note", "target": "ok",
        "connection": "ok",
    }  # fmt: skip
    assert f"{step.path} will be created" in found["connection"][1]
    assert list(tmp_path.iterdir()) == []
    assert "ok           guarantee    EXACTLY_ONCE" in done("doctor", *step.sink)


def test_a_target_is_compared_with_the_log_that_is_named(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    before = tree(tmp_path)
    assert "is not empty" in results(*step.sink, code=1)["target"][1]
    found = results(*step.sink, "--recovery", step.recovery)
    assert found["target"] == ("ok", "matches the log")
    assert "last completed epoch 0" in found["recovery"][1]
    assert tree(tmp_path) == before
    other = ("--sink", "file", "-o", f"path={tmp_path}/other")
    assert "of the target" in results(*other, "--recovery", step.recovery, code=1)["target"][1]


def test_a_target_with_a_recorded_epoch_is_left_to_the_next_start(step: FileStep) -> None:
    with crash_at("after COMMITTING"):
        step.write(0)
    assert results(*step.sink, "--recovery", step.recovery)["target"][0] == "not checked"


def test_wrong_options_and_missing_sinks_fail(step: FileStep) -> None:
    assert "did you mean format" in results(*step.sink, "-o", "fromat=csv", code=1)["options"][1]
    assert "there is no sink" in results("--sink", "nowhere", code=1)["options"][1]
    assert "does not exist" in results("--sink", "json:nothing", code=1)["options"][1]
    assert "No module named" in results("--sink", "no_such_module:x", code=1)["options"][1]


def test_a_directory_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = results("--sink", "file", "-o", f"path={tmp_path}/file/below", code=1)
    assert "failed" in {result for result, _ in found.values()}


def test_a_secret_that_is_missing_is_told_as_a_finding_and_a_typo_alone(tmp_path: Path) -> None:
    given = ("--sink", "postgres", "-o", "table=t", "-o", f"dsn=file:{tmp_path}/none")
    found = results(*given, code=1)
    assert list(found) == ["options", "sink"]
    assert found["sink"][0] == "failed"
    assert "/none" in found["sink"][1]
    (text,) = [text for _, text in results(*given, "-o", "write_mod=upsert", "-o", "order_column=x", code=1).values()]
    assert "did you mean write_mode" in text
    assert "order_column" not in text


def test_a_server_is_reached_without_a_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = results("--sink", "http", "-o", f"url=http://127.0.0.1:{port}/in")
        assert found["connection"] == ("ok", f"127.0.0.1:{port} accepts connections; no request was sent")
        assert found["target"][0] == "not checked"
        server.settimeout(5)
        with server.accept()[0] as peer:
            assert peer.recv(1) == b"", "nothing was sent"
    assert (
        "cannot be reached"
        in results("--sink", "http", "-o", f"url=http://127.0.0.1:{port}/in", code=1)["connection"][1]
    )


def test_no_secret_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MY_TOKEN", "geheim")
    calls = [
        ("--sink", "http", "-o", f"url=http://127.0.0.1:{port}/x?sig=geheim", "-o", "bearer_token=env:MY_TOKEN"),
        ("--sink", "http", "-o", f"url=http://127.0.0.1:{port}/x", "-o", "bearer_token=geheim", "-o", "nonsense=1"),
        ("--sink", "postgres", "-o", f"dsn=postgresql://u:geheim@127.0.0.1:{port}/d", "-o", "table=t",
         "-o", "retry_deadline=0.1", "-o", "connect_timeout=1"),
    ]  # fmt: skip
    for call in calls:
        output = run("doctor", *call).output
        assert "failed" in output
        assert "geheim" not in output


def test_a_sink_object_is_named_by_what_makes_it(
    step: FileStep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = importable(monkeypatch, FileSink(str(step.path), parts=2))
    found = results("--sink", place)
    assert found["sink"][1].startswith("file/growing")
    assert "Python API only" in found["apis"][1]
    assert "creates its own sink" in results("--sink", place, "-o", "path=/x", code=1)["options"][1]
    (tmp_path / "my_pipeline.py").write_text(
        f"from outfall.file import FileSink\nsink = FileSink({str(step.path)!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere")
    assert results("--sink", "my_pipeline:sink")["sink"][1].startswith("file/whole")


@pytest.mark.parametrize("form", ["toml", "json"])
def test_options_come_from_a_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"options.{form}"
    if form == "toml":
        path.write_text('sink = "fanout"\n[a]\nsink = "file"\npath = "/a"\npartition_by = ["x", "y"]\nheader = true\n')
    else:
        inner = {"sink": "file", "path": "/a", "partition_by": ["x", "y"], "header": True}
        path.write_text(json.dumps({"sink": "fanout", "a": inner}))
    assert read_options(path) == {
        "sink": "fanout", "a.sink": "file", "a.path": "/a", "a.partition_by": "x,y", "a.header": "true",
    }  # fmt: skip


def test_options_on_the_command_line_go_before_those_of_the_file(step: FileStep, tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('sink = "file"\npath = "/elsewhere"\nonExisting = "resume"\nstepId = "a"\ncommitDeadline = 7\n')
    found = results("--options-file", file, "-o", f"path={step.path}", "-o", "on_existing=error")
    assert found["sink"] == ("ok", f"file/whole, target file:{step.path}")
    assert ChosenSink(None, read_options(file)).commit_policy().deadline == 7


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.toml", "x = geheim", "is not valid TOML"),
        ("a.json", "{geheim", "is not valid JSON"),
        ("a.json", "[1]", "does not contain a mapping"),
        ("a.json", '{"a": null}', "value of type NoneType"),
        ("a.toml", "a = 2026-11-21", "value of type date"),
    ],
)
def test_a_file_that_holds_no_options_is_refused(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=text) as refused:
        read_options(tmp_path / name)
    assert "geheim" not in str(refused.value)
    assert run("doctor", "--sink", "file", "--options-file", tmp_path / name).exit_code == 2


def test_json_and_text_agree_on_the_exit_code(step: FileStep) -> None:
    step.write(0)
    assert run("doctor", *step.sink).exit_code == 1
    assert parsed("doctor", *step.sink, "--recovery", step.recovery)
