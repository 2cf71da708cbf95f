"""`outfall drain`, `copy` and `reset`; how errors and wrong calls end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")

from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.recovery import history
from outfall.recovery.history import EpochSummary
from outfall.testing import LocalDriver, crash_at
from outfall.wrappers import BatchingSink
from tests.unit.support.command import FileStep, done, failed, importable, parsed, rows, run, tree
from tests.unit.support.hoarding import HoardingInParts


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")


@pytest.fixture
def step(tmp_path: Path) -> FileStep:
    return FileStep(tmp_path)


# --- drain


class HoldingStep(FileStep):
    """Rows wait for a large batch, in the states of two writers."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.held = BatchingSink(FileSink(str(self.path)), batch_size=100, across_epochs=True)

    def driver(self) -> LocalDriver:
        return LocalDriver(self.held, self.recovery)


def test_a_drain_delivers_what_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = HoldingStep(tmp_path)
    step.write(0, 1)
    assert step.found() == []
    place = importable(monkeypatch, step.held)
    text = done("drain", step.recovery, "sink", "--sink", place)
    assert f"epoch 2 delivered {len(step.expected(0, 1))} rows" in text
    assert step.found() == step.expected(0, 1)
    assert "no rows are buffered" in done("drain", step.recovery, "sink", "--sink", place)
    step.write(2)
    assert step.found() == step.expected(0, 1), "the query goes on at its next batch"


def test_a_drain_that_was_killed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = HoldingStep(tmp_path)
    step.write(0)
    place = importable(monkeypatch, step.held)
    with crash_at("after PREPARED"):
        run("drain", step.recovery, "sink", "--sink", place)
    done("drain", step.recovery, "sink", "--sink", place)
    assert step.found() == step.expected(0)


def test_a_drain_of_nothing_recorded_or_of_another_sink_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = HoldingStep(tmp_path)
    place = importable(monkeypatch, step.held)
    assert "nothing is recorded" in failed("drain", step.recovery, "sink", "--sink", place)
    assert not (tmp_path / "rec").exists()
    step.write(0)
    other = BatchingSink(FileSink(str(tmp_path / "elsewhere")), batch_size=100, across_epochs=True)
    assert "are not the recorded ones" in failed(
        "drain", step.recovery, "sink", "--sink", importable(monkeypatch, other)
    )
    assert "has no SupportsBufferedRows" in failed("drain", step.recovery, "sink", *step.sink)


def test_a_sink_that_keeps_states_needs_no_api_to_be_drained(tmp_path: Path) -> None:
    """Through format("outfall") this one is refused."""
    from outfall.http import HttpSink

    recovery = str(tmp_path / "rec")
    LocalDriver(HttpSink("https://example.org/in", across_epochs=True), recovery).run_epoch(0, [[]])
    options = ("-o", "url=https://example.org/in", "-o", "acrossEpochs=true")
    assert "no rows are buffered" in done("drain", recovery, "sink", "--sink", "http", *options)


def test_parts_are_taken_as_an_option_by_every_command_that_makes_a_sink(tmp_path: Path) -> None:
    recovery, path = str(tmp_path / "rec"), str(tmp_path / "out")
    LocalDriver(FileSink(path, parts=3), recovery).run_epoch(0, [[("a", {"n": 1})]])
    sink = ("--sink", "file", "-o", f"path={path}", "-o", "parts=3")
    assert "ok" in done("doctor", *sink, "--recovery", recovery)
    assert parsed("gc", recovery, "sink", *sink)["leftovers"] == []
    assert "has no SupportsBufferedRows" in failed("drain", recovery, "sink", *sink), "whole rows are never held back"
    assert "is of the sink file/growing" in failed("gc", recovery, "sink", *sink[:4])


def test_a_drain_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = HoldingStep(tmp_path)
    step.write(0)
    drain = ("drain", step.recovery, "sink", "--sink", importable(monkeypatch, step.held))
    drained = parsed(*drain)
    assert (drained["epoch"], drained["rows"]) == (1, 4)
    assert parsed(*drain) == {"epoch": None, "rows": 0, "seconds": None}


# --- copy


def test_a_step_is_copied_and_compared(step: FileStep, tmp_path: Path) -> None:
    step.write(0, 1)
    target = f"sqlite://{tmp_path}/db"
    text = done("copy", step.recovery, target, "sink")
    assert "copied and compared" in text
    assert f"recovery='{target}'" in text
    assert [epoch.epoch for epoch in history(target)] == [0, 1]
    assert parsed("copy", step.recovery, target, "sink")["states"] == 0, "a copy can be made again"
    assert "was already moved to" in failed("copy", step.recovery, tmp_path / "third", "sink")


def test_a_copy_of_nothing_or_onto_itself_is_refused(step: FileStep, tmp_path: Path) -> None:
    assert "no recovery data" in failed("copy", step.recovery, tmp_path / "other", "sink")
    step.write(0)
    assert "source and target are both" in failed("copy", step.recovery, step.recovery, "sink")


# --- reset


def test_a_reset_asks_and_does_nothing_without_a_yes(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    before = tree(tmp_path)
    result = run("reset", step.recovery, "sink", answer="n\n")
    assert result.exit_code == 1
    assert "Replayed rows are written again" in result.output
    assert run("reset", step.recovery, "sink").exit_code == 1, "nobody answers"
    assert tree(tmp_path) == before


def test_a_reset_erases_the_log_and_leaves_the_target(step: FileStep, tmp_path: Path) -> None:
    FileStep(tmp_path, "archive").write(0)
    step.write(0)
    target = tree(step.path)
    assert "erased" in done("reset", step.recovery, "sink", answer="y\n")
    assert tree(step.path) == target
    assert [shown["step"] for shown in parsed("status", step.recovery)["steps"]] == ["archive"]
    assert "nothing to erase" in done("reset", step.recovery, "sink", "--yes")


def test_a_reset_names_what_would_be_lost(step: FileStep, tmp_path: Path) -> None:
    with crash_at("after PREPARED"):
        step.write(0)
    assert "Epoch 0 is recorded but not fully published" in run("reset", step.recovery, "sink").output
    holding = HoardingInParts(str(tmp_path / "holding"))
    holding.driver().run_epoch(0, [[("0", [0, "a", 0]), ("1", [0, "a", 1])]])
    assert "2 buffered rows are permanently lost" in run("reset", holding.recovery, "sink").output


def test_a_reset_in_json_asks_nothing_and_erases_only_with_a_yes(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    before = tree(tmp_path)
    refused = json.loads(failed("reset", step.recovery, "sink", "--json"))
    assert (refused["erased"], tree(tmp_path)) == (False, before)
    assert "Replayed rows are written again" in refused["lost"][0]
    assert parsed("reset", step.recovery, "sink", "--yes")["erased"]
    assert parsed("reset", step.recovery, "sink") | {"recovery": None} == {
        "step": "sink", "recovery": None, "lost": [], "erased": False,
    }  # fmt: skip


def test_a_damaged_log_can_be_reset(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    max((tmp_path / "rec/outfall/sink").glob("*.json")).write_bytes(b"{")
    assert "The log cannot be read" in done("reset", step.recovery, "sink", "--yes")
    assert "no steps" in failed("status", step.recovery)


# --- wrong calls, errors, secrets


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["status"], "Missing argument 'RECOVERY'"),
        (["status", "http://host/x"], "is not supported"),
        (["status", "s3://key:geheim@bucket/x"], "contains credentials"),
        (["status", "/r", "--last", "101"], "not in the range"),
        (["show", "/r", "no step", "1"], "is not a valid step id"),
        (["drain", "/r", "sink"], "Missing option '--sink'"),
        (["drain", "/r", "sink", "--sink", "file", "-o", "geheim"], "write each option as name=value"),
        (["drain", "/r", "sink", "--options-file", "/nowhere.toml"], "does not exist"),
        (["nonsense"], "No such command"),
    ],
)
def test_a_wrong_call_ends_with_2(arguments: list[str], text: str) -> None:
    output = failed(*arguments, code=2)
    assert text in output
    assert "geheim" not in output


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    result = run("--debug", "copy", tmp_path / "a", tmp_path / "b", "sink")
    assert isinstance(result.exception, ConfigurationError)


def test_an_error_of_others_is_a_line_without_credentials(step: FileStep, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*given: object, **more: object) -> EpochSummary:
        raise RuntimeError("no answer from https://me:geheim@host/x?token=geheim")

    monkeypatch.setattr("outfall.metrics.step_status.read_status", explode)
    output = failed("status", step.recovery, "--step", "sink")
    assert "RuntimeError: no answer from https://***@host/x" in output
    assert "geheim" not in output


def test_every_command_explains_itself() -> None:
    listed = done("--help")
    for name in ("status", "show", "drain", "gc", "copy", "reset", "doctor"):
        assert f"\n  {name} " in listed
        assert "Usage: outfall" in done(name, "-h")
    assert "version" in done("--version")


def test_a_misspelled_command_gets_a_suggestion() -> None:
    assert "No such command 'statsu'. Did you mean 'status'?" in failed("statsu", code=2)
    assert "No such command 'xyzzy'." in failed("xyzzy", code=2)


@pytest.mark.thorough
def test_it_runs_as_a_process_without_pyspark(step: FileStep) -> None:
    step.write(0)
    code = "import sys; sys.modules['pyspark'] = None; from outfall.cli import main; main()"
    command = [sys.executable, "-c", code, "status", step.recovery, "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(shown.stdout)["steps"][0]["completed"] == 0
    assert shown.stderr == ""


def test_without_its_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from outfall.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pip install 'outfall[cli]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_rows_are_what_the_support_says(step: FileStep) -> None:
    """The tests above compare with this."""
    step.write(0)
    assert step.found() == step.expected(0)
    assert sum(map(len, rows(0))) == 4
