"""What `outfall repair` moves after a loss of power, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("click")

from outfall.capabilities import SupportsBufferedRows
from outfall.capability_checks import capabilities_of
from outfall.errors import FencedError
from outfall.file import FileSink
from outfall.recovery import copy_step, recovery_config
from outfall.recovery.spark_checkpoint import SparkCheckpoint
from outfall.repair.plan import Progress, examine
from outfall.repair.repairing import opened
from outfall.testing import LocalDriver, crash_at
from outfall.trace_points import listen
from outfall.wrappers import BatchingSink
from tests.unit.support.command import done, failed, parsed, rows
from tests.unit.support.journals import entries, kinds
from tests.unit.support.spark_checkpoint import QUERY, MadeCheckpoint


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(params=["", "delta", "zip"])
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> MadeCheckpoint:
    """Batches 0 to 7 are through."""
    return made(tmp_path, 8, state=request.param)


def made(tmp_path: Path, batches: int, *, state: str = "") -> MadeCheckpoint:
    checkpoint = MadeCheckpoint(tmp_path / "chk", state=state)
    for batch in range(batches):
        checkpoint.whole(batch)
    return checkpoint


def moves(
    checkpoint: MadeCheckpoint, begun: int | None, completed: int | None, recorded: int | None = None
) -> list[str]:
    """What would be moved; nothing may be refused."""
    found = examine(
        SparkCheckpoint(str(checkpoint.root)), Progress(begun, completed, completed if recorded is None else recorded)
    )
    assert found.refusals == []
    return list(found.moves)


def refusal(checkpoint: MadeCheckpoint, begun: int | None, completed: int | None) -> str:
    found = examine(SparkCheckpoint(str(checkpoint.root)), Progress(begun, completed, completed))
    assert not found.moves
    return " / ".join(found.refusals)


# --- what is whole


def test_nothing_is_moved_where_nothing_is_torn(checkpoint: MadeCheckpoint) -> None:
    assert moves(checkpoint, 7, 7) == []
    checkpoint.plan(8)
    assert moves(checkpoint, 7, 7) == []
    assert moves(checkpoint, 8, 7) == []
    checkpoint.run(8)
    assert moves(checkpoint, 8, 7) == []
    assert moves(checkpoint, 8, 8) == []


def test_what_a_running_batch_leaves_torn_in_the_state_is_its_own_to_write_again(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 8, state="zip")
    checkpoint.plan(8)
    checkpoint.run(8)
    checkpoint.tear("state/0/0/9.zip", "state/0/1/SSTs/9.sst")
    assert moves(checkpoint, 8, 7) == []
    assert moves(checkpoint, 8, 8) == [], "Spark has not committed batch 8, so it brings it again by itself"


def test_a_checksum_that_is_empty_does_not_count_as_spark_reads_over_it(checkpoint: MadeCheckpoint) -> None:
    (checkpoint.root / "commits" / ".7.crc").write_bytes(b"")
    assert moves(checkpoint, 7, 7) == []


# --- what nobody has begun


def test_offsets_that_no_step_has_begun_are_moved(checkpoint: MadeCheckpoint) -> None:
    checkpoint.plan(8)
    checkpoint.tear("offsets/8")
    assert moves(checkpoint, 7, 7) == ["offsets/8"]


def test_offsets_that_were_begun_are_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.plan(8)
    checkpoint.tear("offsets/8")
    assert "offsets/8 belongs to a batch that was begun" in refusal(checkpoint, 8, 7)


def test_offsets_that_were_begun_and_are_gone_are_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.lose("offsets/7")
    checkpoint.tear("commits/7")
    assert "batch 7 was begun, and without its offsets" in refusal(checkpoint, 7, 7)


def test_a_batch_that_was_begun_in_the_log_alone_was_the_one_before_that_came_again(checkpoint: MadeCheckpoint) -> None:
    """As through options, where only the tasks learn the batch."""
    checkpoint.tear("commits/7")
    assert moves(checkpoint, 8, 7) == ["commits/7"]


def test_batches_that_the_logs_do_not_know_are_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.tear("commits/7")
    assert "recovery data ends with batch 5: it is an older copy" in refusal(checkpoint, 5, 5)


@pytest.mark.parametrize("length", [0, 2, 40])
def test_what_a_source_noted_goes_with_the_offsets_that_stand_on_it(checkpoint: MadeCheckpoint, length: int) -> None:
    checkpoint.plan(8)
    checkpoint.tear("sources/0/8", length=length)
    assert moves(checkpoint, 7, 7) == ["offsets/8", "sources/0/8"]


def test_text_that_is_cut_short_is_found_without_a_checksum(checkpoint: MadeCheckpoint) -> None:
    checkpoint.plan(8)
    checkpoint.tear("sources/0/8", length=40)
    checkpoint.root.joinpath("sources", "0", ".8.crc").unlink(missing_ok=True)
    assert moves(checkpoint, 7, 7) == ["offsets/8", "sources/0/8"]


def test_what_a_source_noted_is_moved_where_spark_came_no_further(checkpoint: MadeCheckpoint) -> None:
    checkpoint.plan(8)
    checkpoint.lose("offsets/8")
    checkpoint.tear("sources/0/8")
    assert moves(checkpoint, 7, 7) == ["sources/0/8"]


def test_offsets_whose_source_entry_is_gone_are_moved(checkpoint: MadeCheckpoint) -> None:
    checkpoint.plan(8)
    checkpoint.lose("sources/0/8")
    assert moves(checkpoint, 7, 7) == ["offsets/8"]


def test_a_source_is_not_left_with_a_gap(tmp_path: Path) -> None:
    """It noted an entry and died, noted another one when it was started again, and then the power failed."""
    checkpoint = made(tmp_path, 7)
    checkpoint.plan(7)
    checkpoint.lose("offsets/7")
    checkpoint.put("sources/0/8", (checkpoint.root / "sources/0/7").read_bytes())
    checkpoint.tear("sources/0/7")
    assert moves(checkpoint, 6, 6) == ["sources/0/8", "sources/0/7"]


def test_what_a_source_noted_for_batches_that_were_begun_is_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.tear("sources/0/6")
    assert "sources/0/6 belongs to batches that were begun" in refusal(checkpoint, 7, 7)


def test_entries_before_a_whole_compact_one_are_not_missed(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 12)
    checkpoint.lose("sources/0/3")
    checkpoint.tear("sources/0/5", "commits/11")
    assert moves(checkpoint, 11, 11) == ["commits/11"]


def test_a_compact_entry_is_moved_when_what_it_replaces_is_there(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 19)
    checkpoint.plan(19)
    checkpoint.tear("sources/0/19.compact", length=200)
    assert moves(checkpoint, 18, 18) == ["offsets/19", "sources/0/19.compact"]


@pytest.mark.parametrize("gone", ["12", "9.compact"])
def test_a_compact_entry_is_refused_when_what_it_replaces_is_not(tmp_path: Path, gone: str) -> None:
    checkpoint = made(tmp_path, 19)
    for number in range(9):
        checkpoint.lose(f"sources/0/{number}")
    checkpoint.plan(19)
    checkpoint.lose(f"sources/0/{gone}")
    checkpoint.tear("sources/0/19.compact")
    assert "sources/0/19.compact replaces entries, and some of them are missing" in refusal(checkpoint, 18, 18)


def test_other_sources_notes_are_refused_once_something_was_begun(tmp_path: Path) -> None:
    """Kafka's says where the query began."""
    checkpoint = made(tmp_path, 1)
    checkpoint.put("offsets/0", 'v1\n{}\n{"topic":{"0":5}}')
    checkpoint.tear("sources/0/0")
    assert "sources/0/0 belongs to batches that were begun" in refusal(checkpoint, 0, None)


# --- what every step has completed


def test_a_commit_of_a_completed_batch_is_moved_and_the_batch_comes_again(checkpoint: MadeCheckpoint) -> None:
    checkpoint.tear("commits/7")
    assert moves(checkpoint, 7, 7) == ["commits/7"]
    checkpoint.plan(8)
    assert moves(checkpoint, 7, 7) == ["offsets/8", "commits/7"], "or Spark would bring batch 8"


def test_a_commit_of_a_batch_that_a_step_has_not_completed_is_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.tear("commits/7")
    assert "if every step has completed batch 7" in refusal(checkpoint, 7, 6)
    assert "if every step has completed batch 7" in refusal(checkpoint, 7, None)


def test_older_commits_are_not_read_and_so_stay(checkpoint: MadeCheckpoint) -> None:
    checkpoint.tear("commits/5")
    assert moves(checkpoint, 7, 7) == []


def test_state_goes_back_by_one_version_together_with_the_commit(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 8, state="delta")
    checkpoint.plan(8)
    checkpoint.tear("state/0/1/8.delta")
    assert moves(checkpoint, 7, 7) == ["offsets/8", "commits/7", "state/0/0/8.delta", "state/0/1/8.delta"]


def test_state_of_rocksdb_goes_back_by_one_version(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 8, state="zip")
    checkpoint.tear("state/0/1/SSTs/8.sst")
    assert moves(checkpoint, 7, 7) == ["commits/7", "state/0/0/8.zip", "state/0/1/8.zip"]
    checkpoint.tear("state/0/1/SSTs/3.sst")
    assert "the last batch cannot build state/0/1/SSTs/3.sst again" in refusal(checkpoint, 7, 7)


@pytest.mark.parametrize("begun", [7, 8])
def test_state_that_is_gone_is_as_torn(tmp_path: Path, begun: int) -> None:
    checkpoint = made(tmp_path, 8, state="delta")
    checkpoint.lose("state/0/1/8.delta")
    if begun == 7:
        assert moves(checkpoint, 7, 7) == ["commits/7", "state/0/0/8.delta"]
    else:
        checkpoint.plan(8)
        assert "batch 8 was begun, so batch 7 cannot be replayed" in refusal(checkpoint, 8, 7)


def test_state_of_which_nothing_is_there_is_built_again(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 8, state="delta")
    checkpoint.lose("state/0/0/8.delta", "state/0/1/8.delta")
    assert moves(checkpoint, 7, 7) == ["commits/7"]


def test_state_whose_bytes_are_others_is_torn(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 8, state="delta")
    path = checkpoint.root / "state/0/0/8.delta"
    path.write_bytes(bytes(path.stat().st_size))
    assert moves(checkpoint, 7, 7) == ["commits/7", "state/0/0/8.delta", "state/0/1/8.delta"]


@pytest.mark.parametrize("name", ["state/0/0/7.delta", "state/0/0/5.snapshot", "state/0/_metadata/metadata"])
def test_other_state_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = made(tmp_path, 8, state="delta")
    checkpoint.put(name, "as written")
    checkpoint.tear(name)
    assert f"the last batch cannot build {name} again" in refusal(checkpoint, 7, 7)


def test_state_before_a_whole_snapshot_is_not_missed(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 8, state="delta")
    checkpoint.put("state/0/0/6.snapshot", "all rows")
    checkpoint.tear("state/0/0/4.delta", "commits/7")
    assert moves(checkpoint, 7, 7) == ["commits/7"]


# --- what is refused altogether


def test_torn_metadata_is_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.tear("metadata", "commits/7")
    assert "metadata has the query id" in refusal(checkpoint, 7, 7)


def test_asynchronous_progress_tracking_is_refused(checkpoint: MadeCheckpoint) -> None:
    checkpoint.lose("offsets/5")
    checkpoint.tear("commits/7")
    assert "numbers are missing in offsets, as with asynchronous progress tracking" in refusal(checkpoint, 7, 7)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("offsets/epoch-8", "", "the checkpoint has an unknown file: offsets/epoch-8"),
        ("somewhere/else", "", "the checkpoint has an unknown file: somewhere"),
        ("commits/7", "v2\n{}", "commits/7 has an unknown format"),
    ],
)
def test_an_unknown_layout_is_refused(checkpoint: MadeCheckpoint, name: str, text: str, why: str) -> None:
    checkpoint.tear("offsets/7")
    checkpoint.put(name, text)
    assert why in refusal(checkpoint, 7, 7)


# --- logs, fences and moves


class Query:
    """Steps that have written the batches of a checkpoint, one of them torn."""

    def __init__(self, place: Path, batches: int = 3, steps: Sequence[str] = ("sink",)) -> None:
        self.checkpoint = made(place, batches)
        self.steps = {name: FileSink(str(place / name)) for name in steps}
        for batch in range(batches):
            self.write(batch)

    def driver(self, step: str) -> LocalDriver:
        return LocalDriver(self.steps[step], str(self.checkpoint.root), step_id=step, query_id=QUERY)

    def write(self, batch: int, *steps: str) -> None:
        for step in steps or self.steps:
            self.driver(step).run_epoch(batch, rows(batch))

    @property
    def root(self) -> str:
        return str(self.checkpoint.root)


def repair(query: Query, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Plan a repair, let something happen, and carry it out."""
    with opened(query.root, [recovery_config(query.root)]) as work:
        plan = work.plan()
        meanwhile()
        work.carry_out(plan)


def test_nothing_changes_without_yes(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.tear("commits/2")
    before = query.checkpoint.files()
    text = done("repair", query.root)
    assert "last begun batch: 2, last batch completed by every step: 2" in text
    assert "aside  commits/2 is empty" in text
    assert "Spark will replay batch 2; its rows are read and dropped" in text
    assert "1 files to move; nothing was moved; add --yes" in text
    assert query.checkpoint.files() == before
    assert "repaired" not in kinds(query.root)


def test_the_plan_is_the_same_with_and_without_yes(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.plan(3)
    query.checkpoint.tear("offsets/3", "commits/2")
    shown, told = parsed("repair", query.root), done("repair", query.root)
    assert told.splitlines()[:-1] == done("repair", query.root, "--yes").splitlines()[:-1]
    assert shown["findings"]["moves"] == ["offsets/3", "commits/2"]
    assert shown["moved"] == []


def test_files_are_moved_with_their_checksums_and_none_is_deleted(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.plan(3)
    query.checkpoint.tear("offsets/3", "commits/2")
    assert parsed("repair", query.root, "--yes")["moved"] == ["offsets/3", "commits/2"]
    aside = [p.relative_to(tmp_path / "chk" / "outfall-repair") for p in tmp_path.rglob("outfall-repair/*/*/*")]
    assert sorted("/".join(path.parts[1:]) for path in aside) == [
        "commits/.2.crc", "commits/2", "offsets/.3.crc", "offsets/3",
    ]  # fmt: skip
    assert {"offsets/2", "commits/1", "sources/0/3"} <= query.checkpoint.files()
    assert "no damage found" in done("repair", query.root)
    assert "commits/2" not in query.checkpoint.files()


def test_every_step_is_fenced_before_anything_is_moved(tmp_path: Path) -> None:
    query = Query(tmp_path, steps=("left", "right"))
    query.checkpoint.tear("commits/2")
    drivers = [query.driver(step) for step in query.steps]
    running = [driver.coordinator() for driver in drivers]
    tickets = [coordinator.begin(3, query_id=QUERY) for coordinator in running]
    query.checkpoint.plan(3)
    assert "once every step has completed" not in done("repair", query.root, "--yes")
    for step in query.steps:
        first, second = [entry for entry in entries(query.root, step) if entry["kind"] == "repaired"]
        assert (first["files"], first["done"], second["done"]) == (["commits/2"], False, True)
    for driver, coordinator, ticket in zip(drivers, running, tickets, strict=True):
        with pytest.raises(FencedError):
            coordinator.finish(ticket, driver.run_tasks(ticket, 3, rows(3)))
    query.write(3)


def test_a_driver_that_begins_meanwhile_has_everything_moved_back(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.plan(3)
    query.checkpoint.tear("offsets/3")
    before = query.checkpoint.files()
    stop = listen(lambda step: query.write(3) if step == "repair: moved" else None)
    with pytest.raises(FencedError, match="stop the query, then repair"):
        repair(query)
    stop()
    assert query.checkpoint.files() == before


def test_a_driver_that_begins_between_the_plan_and_the_repair_has_nothing_moved(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.plan(3)
    query.checkpoint.tear("offsets/3")
    before = query.checkpoint.files()
    with pytest.raises(FencedError, match="stop the query, then repair"):
        repair(query, lambda: query.write(3))
    assert query.checkpoint.files() == before
    assert "repaired" not in kinds(query.root)


@pytest.mark.parametrize("step", ["repair: fenced", "repair: moved", "repair: moved#2"])
def test_a_repair_that_dies_is_made_again(tmp_path: Path, step: str) -> None:
    query = Query(tmp_path)
    query.checkpoint.plan(3)
    query.checkpoint.tear("sources/0/3", "commits/2")
    with crash_at(step):
        repair(query)
    done("repair", query.root, "--yes")
    assert not query.checkpoint.files() & {"offsets/3", "sources/0/3", "commits/2"}
    query.write(2)
    query.write(3)
    assert kinds(query.root)[-1] == "completed"


def test_a_step_that_is_behind_is_named(tmp_path: Path) -> None:
    query = Query(tmp_path, steps=("left", "right"))
    query.checkpoint.whole(3)
    query.write(3, "left")
    query.checkpoint.tear("commits/3")
    assert "if every step has completed batch 3; incomplete: right" in failed("repair", query.root, "--yes")
    assert "aside  commits/3" in done("repair", query.root, "--step", "left")


def test_an_epoch_is_the_batch_and_the_drains_before_it(tmp_path: Path) -> None:
    query = Query(tmp_path, batches=0)
    sink = BatchingSink(FileSink(str(tmp_path / "held")), batch_size=100, across_epochs=True)
    assert SupportsBufferedRows in capabilities_of(sink)
    driver = LocalDriver(sink, query.root, query_id=QUERY)
    for batch in range(3):
        query.checkpoint.whole(batch)
        driver.run_epoch(batch, rows(batch))
        driver.drain()
    query.checkpoint.plan(3)
    query.checkpoint.tear("offsets/3", "commits/2")
    text = done("repair", query.root, "--yes")
    assert "last begun batch: 2, last batch completed by every step: 2" in text
    again = LocalDriver(sink, query.root, query_id=QUERY)
    assert again.run_epoch(2, rows(2)).skipped
    assert not again.run_epoch(3, rows(3)).skipped


def test_what_was_begun_and_skipped_was_the_batch_before(tmp_path: Path) -> None:
    query = Query(tmp_path)
    driver = query.driver("sink")
    coordinator = driver.coordinator()
    ticket = coordinator.begin(None, query_id=QUERY)
    coordinator.finish(ticket, driver.run_tasks(ticket, 2, rows(2)))
    assert kinds(query.root)[-2:] == ["begin", "skipped"]
    query.checkpoint.plan(3)
    query.checkpoint.tear("offsets/3")
    assert parsed("repair", query.root, "--yes")["moved"] == ["offsets/3"]


def test_a_move_is_durable_where_a_file_was_and_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path)
    query.checkpoint.tear("commits/2")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    (moved,) = parsed("repair", query.root, "--yes")["moved"]
    (aside,) = Path(query.root).glob("outfall-repair/*/commits")
    assert moved == "commits/2"
    assert {str(aside), str(Path(query.root) / "commits")} <= set(synced)


def test_logs_elsewhere_are_named_and_those_of_other_queries_there_left_alone(tmp_path: Path) -> None:
    query = Query(tmp_path, batches=0)
    elsewhere = f"sqlite://{tmp_path}/recovery"
    LocalDriver(FileSink(str(tmp_path / "other")), elsewhere, step_id="other", query_id="other").run_epoch(0, rows(0))
    driver = LocalDriver(FileSink(str(tmp_path / "out")), elsewhere, query_id=QUERY)
    for batch in range(3):
        query.checkpoint.whole(batch)
        driver.run_epoch(batch, rows(batch))
    query.checkpoint.tear("commits/2")
    assert "no step of the query" in failed("repair", query.root)
    assert parsed("repair", query.root, "--recovery", elsewhere, "--yes")["moved"] == ["commits/2"]
    assert kinds(elsewhere)[-1] == "repaired"
    assert kinds(elsewhere, "other")[-1] == "completed"


def test_a_step_that_was_moved_is_looked_for_where_it_is(tmp_path: Path) -> None:
    query = Query(tmp_path, steps=("left", "right"))
    query.checkpoint.tear("commits/2")
    there = f"sqlite://{tmp_path}/recovery"
    copy_step(query.root, there, "left")
    assert "give that location with --recovery, and this one too" in failed("repair", query.root)
    done("repair", query.root, "--recovery", query.root, "--recovery", there, "--yes")
    assert kinds(there, "left")[-1] == kinds(query.root, "right")[-1] == "repaired"


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert "is not the checkpoint of a query on a local disk" in failed("repair", tmp_path)
    assert "is not a Spark checkpoint" in failed("repair", "sqlite:///somewhere", code=2)


def test_status_shows_the_state_before_a_repair(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.tear("commits/2")
    done("repair", query.root, "--yes")
    assert parsed("status", query.root)["steps"][0]["state"] == "completed"


def test_what_is_recorded_and_not_published_is_still_published_after_a_repair(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.plan(3)
    with crash_at("after PREPARED"):
        query.write(3)
    query.checkpoint.plan(4)
    query.checkpoint.tear("sources/0/4", "offsets/4")
    done("repair", query.root, "--yes")
    assert query.driver("sink").run_epoch(3, rows(3)).skipped
    assert len(list((tmp_path / "sink").glob("part-*"))) == 8
