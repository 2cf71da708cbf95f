"""`outfall status` and `outfall show`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from outfall.async_sink import RequestOutcome
from outfall.capabilities import CommitterInitContext
from outfall.errors import TargetLostError
from outfall.metrics.step_status import read_status
from outfall.recovery import LogEntry, SqliteRecoveryConfig, copy_step, history, recovery_config
from outfall.recovery.entries import Begin, Prepared, StoredValue, encode_entry, store_state
from outfall.recovery.file_log import FileLog
from outfall.serde import JsonSerializer
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.async_destination import Destination, TextSink
from tests.unit.support.command import FileStep, done, failed, in_terminal, parsed, rows, run, tree
from tests.unit.support.hoarding import HoardingInParts
from tests.unit.support.warehouse import StagingSink, Warehouse


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def step(tmp_path: Path) -> FileStep:
    return FileStep(tmp_path)


def test_all_steps_are_shown_with_their_last_epochs(step: FileStep, tmp_path: Path) -> None:
    step.write(0, 1)
    FileStep(tmp_path, "archive").write(0)
    before = tree(tmp_path)
    text = done("status", step.recovery)
    assert text.index("step archive: epoch 0 completed") < text.index("step sink: epoch 1 completed")
    assert f"file:{step.path}" in text
    assert "EXACTLY_ONCE" in text
    assert tree(tmp_path) == before, "status writes nothing"


def test_json_says_the_same(step: FileStep) -> None:
    step.write(0, 1, 2)
    found = parsed("status", step.recovery, "--last", 2)
    (shown,) = found["steps"]
    assert (found["recovery"], shown["step"], shown["state"], shown["completed"]) == (
        step.recovery, "sink", "completed", 2,
    )  # fmt: skip
    assert (shown["guarantee"], shown["sink"], shown["target"]) == ("EXACTLY_ONCE", "file/whole", f"file:{step.path}")
    assert len(shown["incarnation"]) == 16
    assert [(epoch["epoch"], epoch["rows"], epoch["retries"], epoch["skipped"]) for epoch in shown["epochs"]] == [
        (1, 4, 0, 0), (2, 4, 0, 0),
    ]  # fmt: skip


def test_one_step_of_several_and_no_epochs(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    FileStep(tmp_path, "archive").write(0)
    (shown,) = parsed("status", step.recovery, "--step", "archive", "--last", 0)["steps"]
    assert (shown["step"], shown["epochs"]) == ("archive", [])


def test_a_relative_path_is_one_of_this_directory(
    step: FileStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.write(0)
    monkeypatch.chdir(tmp_path)
    assert "step sink" in done("status", "rec")


def test_a_location_without_steps_says_what_it_is(tmp_path: Path) -> None:
    def said(path: Path) -> str:
        return " ".join(failed("status", path).split())

    assert said(tmp_path / "rec") == f"no steps in {tmp_path}/rec: the directory {tmp_path}/rec does not exist"
    assert said(tmp_path).endswith("it is neither a checkpoint nor a value of recovery=")
    (tmp_path / "chk" / "offsets").mkdir(parents=True)
    assert said(tmp_path / "chk").endswith("it is a Spark checkpoint without Outfall's records")
    assert json.loads(failed("status", tmp_path, "--json"))["problem"].endswith("nor a value of recovery=")


def test_the_checkpoints_of_a_directory_are_listed(tmp_path: Path) -> None:
    for name in ("flights", "trains"):
        LocalDriver(FileStep(tmp_path, name).driver().sink, str(tmp_path / name)).run_epoch(0, [])
    with crash_at("after PREPARED"):
        LocalDriver(FileStep(tmp_path, "trains").driver().sink, str(tmp_path / "trains")).run_epoch(1, [])
    lines = [line.split() for line in done("status", tmp_path).splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["flights", "sink", "completed", "0"], ["trains", "sink", "recorded", "1"],
    ]  # fmt: skip
    found = parsed("status", tmp_path)["checkpoints"]
    assert [each["steps"][0]["state"] for each in found] == ["completed", "recorded"]
    max((tmp_path / "trains/outfall/sink").glob("*.json")).write_bytes(b"{")
    assert "damaged" in failed("status", tmp_path)


@pytest.mark.parametrize("file", ["outfall/target/00000000000000000001.parquet", "outfall/protocol/__init__.py"])
def test_folders_of_tables_and_of_packages_are_no_steps(step: FileStep, tmp_path: Path, file: str) -> None:
    step.write(0)
    (tmp_path / "other" / file).parent.mkdir(parents=True)
    (tmp_path / "other" / file).touch()
    assert "it is neither a checkpoint nor a value of recovery=" in failed("status", tmp_path / "other")
    (found,) = parsed("status", tmp_path)["checkpoints"]
    assert (found["steps"][0]["step"], found["steps"][0]["completed"]) == ("sink", 0)


@pytest.mark.parametrize("command", [("status",), ("show",), ("gc", "--sink", "file", "-o", "path=/x")])
def test_an_empty_location_is_refused(command: tuple[str, ...]) -> None:
    assert "the location is empty: give a path, a URL" in " ".join(
        failed(command[0], "", "sink", *command[1:], code=2).split()
    )


def test_where_nothing_was_written_there_is_no_step_and_nothing_is_made(tmp_path: Path) -> None:
    assert "no steps" in failed("status", tmp_path / "rec")
    assert "nothing is recorded" in failed("status", tmp_path / "rec", "--step", "sink")
    assert json.loads(failed("status", f"sqlite://{tmp_path}/db", "--json"))["steps"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_there_is_a_failure_beside_one_that_is(step: FileStep) -> None:
    step.write(0)
    text = failed("status", step.recovery, "--step", "sink", "--step", "typo")
    assert "step sink: epoch 0 completed" in text
    assert "step typo: nothing is recorded" in text


@pytest.mark.parametrize(
    ("point", "state", "text"),
    [
        ("after BEGIN", "begun", "epoch 1 began"),
        ("after PREPARED", "recorded", "epoch 1 was recorded"),
        ("after COMMITTING", "committing", "epoch 1 is not fully published"),
        ("after COMPLETED", "completed", "epoch 1 completed"),
    ],
)
def test_the_state_is_where_the_driver_died(step: FileStep, point: str, state: str, text: str) -> None:
    step.write(0)
    with crash_at(point):
        step.write(1)
    (shown,) = parsed("status", step.recovery)["steps"]
    assert (shown["state"], shown["epoch"]) == (state, 1)
    assert text in done("status", step.recovery)


def test_an_error_is_shown_with_its_remedy_until_a_later_epoch_completes(step: FileStep) -> None:
    step.write(0)
    away = step.path.rename(step.path.with_name("renamed"))
    with pytest.raises(TargetLostError) as raised:
        step.write(1)
    (shown,) = parsed("status", step.recovery)["steps"]
    assert (shown["failed"], shown["last_error"]["error"], shown["last_error"]["do"]) == (
        True, "TargetLostError", raised.value.do
    )  # fmt: skip
    text = done("status", step.recovery)
    assert re.search("epoch 0 completed .* ago; the query has failed", text)
    assert "s ago, driver, epoch 1: TargetLostError: " in text
    assert f"what to do   {raised.value.do}" in text
    away.rename(step.path)
    step.write(1)
    step.write(2)
    (shown,) = parsed("status", step.recovery)["steps"]
    assert (shown["failed"], shown["last_error"]) == (False, None)


def test_what_is_shown_is_of_one_moment(step: FileStep, monkeypatch: pytest.MonkeyPatch) -> None:
    step.write(0)
    given, pending = FileLog.read, [1]

    def read(log: FileLog, *, last: int | None = None, known: Mapping[int, bytes] | None = None) -> list[LogEntry]:
        found = given(log, last=last, known=known)
        if pending:
            with crash_at("after PREPARED"):
                step.write(pending.pop())
        return found

    monkeypatch.setattr(FileLog, "read", read)
    status = read_status(recovery_config(step.recovery), "sink", last=1)
    assert not pending
    assert (status.state, status.epoch, status.completed) == ("completed", 0, 0)


def test_a_moved_step_says_where_to(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    target = SqliteRecoveryConfig(str(tmp_path / "db"))
    copy_step(step.recovery, target)
    assert f"moved to {target.url()}" in done("status", step.recovery)
    assert "epoch 0 completed" in done("status", target.url())


@pytest.mark.parametrize("damage", [b"{", b"[" * 200_000], ids=["truncated", "nested"])
def test_a_damaged_step_is_shown_beside_the_others_and_is_a_failure(
    step: FileStep, tmp_path: Path, damage: bytes
) -> None:
    step.write(0)
    FileStep(tmp_path, "archive").write(0)
    max((tmp_path / "rec/outfall/archive").glob("*.json")).write_bytes(damage)
    result = run("status", step.recovery)
    assert result.exit_code == 1
    assert f"is damaged ({len(damage)} bytes)" in result.output
    assert "step sink: epoch 0 completed" in result.output


def test_buffered_rows_are_counted(tmp_path: Path) -> None:
    setup = HoardingInParts(str(tmp_path))
    setup.driver().run_epoch(0, [[("0", [0, "a", 0]), ("1", [0, "a", 1])]])
    (shown,) = parsed("status", setup.recovery)["steps"]
    assert (shown["buffered_rows"], shown["held_since"]) == (2, "2026-11-21T12:00:00+00:00")
    text = done("status", setup.recovery)
    assert "2 rows, the oldest since 2026-11-21 12:00:00 UTC" in text
    assert f"outfall drain {recovery_config(setup.recovery).url()} sink, with the sink's options" in " ".join(
        text.split()
    )


def test_a_drain_is_shown_with_the_rows_that_it_delivered(tmp_path: Path) -> None:
    setup = HoardingInParts(str(tmp_path))
    setup.driver().run_epoch(0, [[("0", [0, "a", 0]), ("1", [0, "a", 1])]])
    setup.driver().drain()
    *_, line = done("status", setup.recovery).splitlines()
    assert line.split()[:2] == ["1", "drain"]
    assert line.split()[4] == "2"
    drained = history(setup.recovery)[-1]
    assert (drained.rows, drained.counts["rows_drained"], drained.delivered_rows) == (0, 2, 2)


def test_a_line_fits_80_columns_and_what_is_zero_throughout_is_left_out(step: FileStep) -> None:
    step.write(0, 1)
    text = done("status", step.recovery)
    assert not re.search("retries|dead|skipped|buffered|dropped|batch", text)
    step.driver().run_epoch(1, rows(1))
    assert "skipped" in done("status", step.recovery)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_a_failure_is_red_in_a_terminal(step: FileStep, tmp_path: Path, environment: dict[str, str]) -> None:
    step.write(0)
    max((tmp_path / "rec/outfall/sink").glob("*.json")).write_bytes(b"{")
    shown = in_terminal("status", step.recovery, columns=80, **environment)
    assert ("\x1b[1;31mthe log is damaged" in shown) is (not environment)
    assert all(len(re.sub("\x1b\\[[0-9;]*m", "", line)) <= 80 for line in shown.splitlines())
    assert "\x1b" not in failed("status", step.recovery)


def test_no_text_of_a_log_controls_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x9b2J"
    step = FileStep(tmp_path / evil)
    step.write(0)
    for command in ("status", "show"):
        assert all(line.isprintable() for line in run(command, step.recovery).output.split("\n"))
        assert json.loads(run(command, step.recovery, "--json").stdout)
    shown = in_terminal("status", step.recovery, columns=80)
    assert re.sub("\x1b\\[[0-9;]*m", "", shown).replace("\r", "").replace("\n", "").isprintable()


def test_what_a_sink_on_the_asynchronous_base_sends_again_and_has_sent_is_counted(tmp_path: Path) -> None:
    destination = Destination(lambda entries, number: (0.01, RequestOutcome(retry=entries[:1] if number == 0 else [])))
    LocalDriver(TextSink(destination), str(tmp_path)).run_epoch(0, [["aa", "ä", "b"]])
    (shown,) = parsed("status", tmp_path)["steps"]
    assert [(epoch["rows"], epoch["bytes"], epoch["retries"]) for epoch in shown["epochs"]] == [(3, 5, 1)]


def test_the_last_epoch_is_shown_whole(step: FileStep) -> None:
    step.write(0, 1)
    found = parsed("show", step.recovery, "sink", "last")
    assert (found["epoch"], found["whole"]) == (1, True)
    assert [entry["kind"] for entry in found["entries"]] == ["begin", "prepared", "committing", "completed"]
    committables = [item["value"]["value"] for item in found["entries"][1]["committables"]]
    assert sorted(item["rows"] for item in committables) == [1, 3]
    text = done("show", step.recovery, "sink", 1)
    assert all(item["name"] in text for item in committables)


def test_of_older_epochs_the_counts_are_kept(step: FileStep) -> None:
    step.write(0, 1)
    found = parsed("show", step.recovery, "sink", 0)
    assert not found["whole"]
    assert [entry["counts"]["rows"] for entry in found["entries"]] == [4]
    assert "no longer kept" in done("show", step.recovery, "sink", 0)


def test_where_no_step_is_named_it_is_sink_or_the_only_one(step: FileStep, tmp_path: Path) -> None:
    FileStep(tmp_path, "archive").write(0, 1)
    assert "step archive, epoch 1" in done("show", step.recovery)
    FileStep(tmp_path, "other").write(0)
    assert "give one of archive, other" in failed("show", step.recovery)
    step.write(0)
    assert "step sink, epoch 0" in done("show", step.recovery)
    assert parsed("show", step.recovery, "archive", 0)["step"] == "archive"


def test_a_path_that_is_missing_and_one_above_checkpoints_are_told_apart(step: FileStep, tmp_path: Path) -> None:
    step.write(0)
    for command in (("show",), ("show", "sink"), ("gc", "sink", *step.sink), ("drain", "sink", *step.sink)):
        name, *rest = command
        assert f"{tmp_path}/typo does not exist" in failed(name, tmp_path / "typo", *rest)
        assert "is a directory of checkpoints: give one of rec" in failed(name, tmp_path, *rest)
    assert "The recorded steps are sink" in failed("gc", step.recovery, "typo", *step.sink)


def test_an_epoch_that_is_not_there_names_those_that_are(step: FileStep) -> None:
    step.write(0, 1)
    assert "The log has epochs 0 to 1" in failed("show", step.recovery, "sink", 7)
    assert "nothing is recorded" in failed("show", step.recovery, "other", 7)
    assert "neither a number nor 'last'" in failed("show", step.recovery, "sink", "seven", code=2)


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """A log whose states hold what people should not see, are binary, or lie beside it."""
    recovery = recovery_config(str(tmp_path / "rec"))
    log = recovery.open("sink")
    common: dict[str, Any] = {"step": "sink", "incarnation": "0" * 16, "epoch": 0}
    begin = Begin(
        **common, outfall="0.1.0", sink="s", target="https://me:geheim@host/x?sig=geheim", query_id=None, driver="d:1"
    )
    log.append(encode_entry(begin), after=0)
    states = {
        "url": StoredValue.of(1, json.dumps({"at": "s3://me:geheim@bucket/x", "n": 1}).encode()),
        "binary": StoredValue.of(2, b"\xff\x00"),
        "large": store_state(JsonSerializer(), ["x" * 100_000], log=log, name="large", generation=1),
    }
    log.append(encode_entry(Prepared(**common, generation=1, query_id=None, states=states)), after=1)
    return str(tmp_path / "rec")


def test_states_are_readable_and_hold_no_credentials(recorded: str) -> None:
    (begin, prepared) = parsed("show", recorded, "sink", 0)["entries"]
    assert begin["target"] == "https://***@host/x"
    states = prepared["states"]
    assert states["url"] == {"version": 1, "value": {"at": "s3://***@bucket/x", "n": 1}}
    assert states["binary"] == {"version": 2, "base64": "/wA="}
    assert states["large"]["value"] == ["x" * 100_000]
    for command in (("show", recorded, "sink", 0), ("status", recorded), ("status", recorded, "--json")):
        assert "geheim" not in done(*command), command


def test_a_state_that_is_gone_is_said_to_be(recorded: str) -> None:
    for path in Path(recorded).glob("outfall/sink/states/*"):
        path.unlink()
    (_, prepared) = parsed("show", recorded, "sink", 0)["entries"]
    assert "is not in" in prepared["states"]["large"]["missing"]


def test_rows_that_came_again_are_shown_as_skipped(step: FileStep) -> None:
    step.write(0)
    step.driver().run_epoch(0, rows(0))
    (shown,) = parsed("status", step.recovery)["steps"]
    assert [epoch["skipped"] for epoch in shown["epochs"]] == [0, 4]


class _ManyTables(StagingSink):
    """Says that its epochs have twelve tables, of which one has more rows than the others."""

    def create_committer(self, context: CommitterInitContext) -> Any:
        for number in range(12):
            context.metrics.table(f"t{number}\x1b", 2000 if number == 7 else 1)
        return super().create_committer(context)


def test_an_epoch_into_many_tables_has_their_number_and_the_largest(tmp_path: Path) -> None:
    recovery = str(tmp_path / "checkpoint")
    LocalDriver(_ManyTables(Warehouse()), recovery).run_epoch(0, [[{"id": 1}]])
    text = done("status", recovery)
    assert re.search(r"tables +12 in epoch 0, the largest: t7.* \(2,000 rows\), t0.* \(1 rows\), t1", text)
    assert "\x1b" not in text
    ((epoch,),) = (step["epochs"] for step in parsed("status", recovery)["steps"])
    assert (len(epoch["tables"]), list(epoch["tables"].values())[:2]) == (10, [2000, 1])
    assert epoch["counts"]["max_tables"] == history(recovery)[0].table_count == 12
    report = tmp_path / "report.html"
    done("report", recovery, "-o", str(report))
    assert "12 in epoch 0, the largest: t7" in report.read_text()
