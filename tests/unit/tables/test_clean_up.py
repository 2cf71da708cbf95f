"""What lost attempts left in a table's data directory goes; what the table or others use stays."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.capabilities import CleanUpContext, CommitRequest, CommittableMessage
from outfall.cli.commands.gc import LeftoverCleaner
from outfall.errors import FencedError, TransientError
from outfall.tables.area import directory_of
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableStore
from tests.unit.support.points import error_of
from tests.unit.support.table_epochs import INCARNATION, attempted, commit, committer, ids, staged, token_of, writer

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]
MORE = [{"id": 3, "text": "c"}]
BOTH = {1: token_of(1), 2: token_of(2)}


@pytest.fixture
def link() -> TableLink:
    return TableLink(TableStore(spec=["text"]))


def context(generation: int, *lost: int, token: str | None = None, **more: Any) -> CleanUpContext:
    """The engine's own clean up of a generation that lost others before."""
    return CleanUpContext(
        "sink", INCARNATION, generation, token=token or token_of(generation),
        lost={number: token_of(number) for number in lost}, states=dict, writer_states=list, **more,
    )  # fmt: skip


def any_older(generation: int) -> CleanUpContext:
    """The clean-up of `outfall gc`."""
    return CleanUpContext("sink", INCARNATION, generation, states=dict, writer_states=list)


def below(link: TableLink, generation: int) -> list[str]:
    """The files of a BEGIN."""
    directory = directory_of(INCARNATION, generation, token_of(generation))
    return [path for path in link.store.paths() if path.startswith(f"{directory}/")]


def put(link: TableLink, path: str) -> str:
    link.store.files.pipe(f"/{link.store.name}/{path}", b"theirs")
    return path


def test_a_lost_begins_files_go_and_no_others(link: TableLink) -> None:
    commit(link, staged(link, ROWS))
    staged(link, MORE, 2, 1)
    staged(link, MORE, 3, 1)
    assert MemoryTableSink(link).clean_up(context(3, 2)) == 1
    assert not below(link, 2)
    assert below(link, 3)
    assert ids(link) == [1, 2]


def test_a_committed_begin_that_is_called_lost_is_not_cleaned_up(link: TableLink) -> None:
    """A copy of a log, made between BEGIN and PREPARED, takes for lost what the other one has committed."""
    commit(link, staged(link, ROWS))
    assert MemoryTableSink(link).clean_up(context(2, 1)) == 0
    assert ids(link) == [1, 2]
    commit(link, staged(link, MORE, 2, 1), 2, 1, begun=BOTH)
    assert MemoryTableSink(link).clean_up(context(2, 1, token="ff" * 8)) == 0
    assert MemoryTableSink(link).clean_up(context(3, 1, 2)) == 0
    assert ids(link) == [1, 2, 3]


def test_what_is_cleaned_up_can_be_committed_by_nobody_any_more(link: TableLink) -> None:
    """Nor by a driver of another copy of the log, which the log does not fence."""
    stale = TableLink(link.store, fates=["late"])
    files = staged(link, ROWS)
    stale.fates = ["late"] * 5
    assert commit(stale, files) == "retry"
    MemoryTableSink(link).clean_up(context(2, 1))
    assert not below(link, 1)
    while link.store.late:
        link.store.arrive()
    request = CommitRequest(files.model_copy(update={"recorded_by": "this process"}))
    committer(link).commit([request])
    assert request.outcome.kind == "lost"
    assert ids(link) == []


def test_a_clean_up_commits_nothing_where_a_newer_generation_has_committed(link: TableLink) -> None:
    staged(link, ROWS)
    commit(link, staged(link, MORE, 2), 2, begun=BOTH)
    assert MemoryTableSink(link).clean_up(context(2, 1)) == 2
    assert len(link.store.history) == 1


def test_a_clean_up_hides_no_rollback(link: TableLink) -> None:
    link.store.append({"id": 99, "text": "x"})
    commit(link, staged(link, ROWS))
    staged(link, MORE, 2, 1)
    link.store.rollback()
    before = link.store.state
    assert MemoryTableSink(link).clean_up(context(3, 2)) == 0
    assert link.store.state is before


@pytest.mark.parametrize("fates", [["landed"], ["lost"], ["late"]])
def test_a_clean_up_whose_commit_is_unclear_looks_again(link: TableLink, fates: list[str]) -> None:
    staged(link, ROWS)
    link.fates = fates
    assert MemoryTableSink(link).clean_up(context(2, 1)) == 2


def test_a_clean_up_that_cannot_revoke_removes_nothing(link: TableLink) -> None:
    staged(link, ROWS)
    link.fates = ["lost"] * 5
    assert MemoryTableSink(link).clean_up(context(2, 1)) == 0
    assert len(below(link, 1)) == 2


def test_without_lost_begins_the_table_is_not_even_loaded(link: TableLink) -> None:
    link.gone = True
    assert MemoryTableSink(link).clean_up(context(2)) == 0


def test_a_table_that_was_dropped_has_nothing_to_clean_up(link: TableLink) -> None:
    staged(link, ROWS)
    link.store.drop()
    assert MemoryTableSink(link).clean_up(context(2, 1)) == 0
    assert MemoryTableSink(link).find_leftovers(any_older(2)) == ()


def test_other_peoples_files_stay_in_our_directories_too(link: TableLink) -> None:
    staged(link, ROWS)
    directory = directory_of(INCARNATION, 1, token_of(1))
    theirs = [put(link, path) for path in ("a.parquet", "outfall/x", f"{directory}/notes.txt", "metadata/v1.json")]
    MemoryTableSink(link).clean_up(context(2, 1))
    MemoryTableSink(link).clean_up(any_older(9))
    assert sorted(link.store.paths()) == sorted(theirs)


# --- outfall gc


def test_gc_spares_what_a_snapshot_names_and_finds_the_rest_of_all_older_begins(link: TableLink) -> None:
    commit(link, staged(link, ROWS))
    attempted(link, MORE, 1, 0, attempt=1)
    staged(link, MORE, 2, 1)
    staged(link, MORE, 3, 1)
    sink = MemoryTableSink(link)
    found = sink.find_leftovers(any_older(3))
    assert len(found) == 2
    assert sink.clean_up(any_older(3)) == 2
    assert sink.find_leftovers(any_older(3)) == []
    assert below(link, 3)
    assert ids(link) == [1, 2]


def test_gc_spares_what_only_an_older_snapshot_names(link: TableLink) -> None:
    commit(link, staged(link, ROWS))
    link.store.compact()
    sink = MemoryTableSink(link)
    assert sink.clean_up(any_older(5)) == 0
    link.store.expire()
    assert sink.clean_up(any_older(5)) == 2
    assert ids(link) == [1, 2]


def test_listing_changes_nothing(link: TableLink) -> None:
    staged(link, ROWS)
    before, paths = link.store.state, link.store.paths()
    assert len(MemoryTableSink(link).find_leftovers(any_older(2))) == 2
    assert (link.store.state, link.store.paths()) == (before, paths)


def test_the_command_finds_what_an_engine_left(link: TableLink) -> None:
    recovery = MemoryRecoveryConfig()
    sink = MemoryTableSink(link)
    LocalDriver(sink, recovery).run_epoch(0, [ROWS])
    with crash_at("before PREPARED"):
        LocalDriver(sink, recovery).run_epoch(1, [MORE])
    with crash_at("after BEGIN"):
        LocalDriver(sink, recovery).run_epoch(1, [MORE])
    cleaner = LeftoverCleaner(sink, recovery, "sink")
    assert len(cleaner.find(take_over=False).names) == 1
    assert cleaner.clean_up(take_over=False) == 1
    assert cleaner.find(take_over=False).names == []


# --- after a commit


def test_attempts_that_lost_to_another_of_their_begin_are_cleared_after_the_commit(link: TableLink) -> None:
    attempted(link, MORE, attempt=3)
    files = staged(link, ROWS)
    commit(link, files)
    MemoryTableSink(link).add_post_commit_topology([CommittableMessage(files, 0, 0)])
    assert len(below(link, 1)) == 2
    assert ids(link) == [1, 2]


def test_a_failure_to_clear_up_fails_no_epoch(link: TableLink, caplog: pytest.LogCaptureFixture) -> None:
    files = staged(link, ROWS)
    commit(link, files)
    link.gone = True
    MemoryTableSink(link).add_post_commit_topology([CommittableMessage(files, 0, 0)])
    assert "the work after a commit failed" in caplog.text


def test_an_engine_leaves_nothing_but_what_the_table_names(link: TableLink) -> None:
    recovery = MemoryRecoveryConfig()
    for epoch in range(3):
        for point in ("after BEGIN", "table: file written", "before PREPARED"):
            with crash_at(point):
                LocalDriver(MemoryTableSink(link), recovery).run_epoch(epoch, [ROWS])
        LocalDriver(MemoryTableSink(link), recovery).run_epoch(epoch, [ROWS])
        assert set(link.store.paths()) == link.store.named_paths()
    assert ids(link) == [1, 1, 1, 2, 2, 2]


# --- failed attempts


def test_an_attempt_that_fails_leaves_nothing(link: TableLink) -> None:
    part = writer(link)
    part.write_batch(ROWS)
    part.close()
    assert link.store.paths() == []


def test_an_attempt_that_has_handed_over_leaves_its_files_when_it_is_closed(link: TableLink) -> None:
    part = writer(link)
    part.write_batch(ROWS)
    part.prepare_commit()
    part.close()
    assert len(link.store.paths()) == 2


def test_a_store_that_does_not_answer_is_an_error_that_may_pass(link: TableLink) -> None:
    part = writer(link)
    link.gone = True
    assert isinstance(error_of(lambda: part.write_batch(ROWS)), TransientError)
    part.close()


def test_a_batch_job_without_recovery_leaves_no_record(link: TableLink) -> None:
    commit(link, staged(link, ROWS))
    assert link.store.state
    MemoryTableSink(link).clean_up(context(1, final=True))
    assert link.store.state.records == {}
    assert ids(link) == [1, 2]


def test_a_job_that_is_withdrawn_is_forgotten(link: TableLink) -> None:
    files = staged(link, ROWS)
    committer(link).revoke([CommitRequest(files)])
    MemoryTableSink(link).withdraw(context(2, 1, final=True))
    assert link.store.state
    assert link.store.state.records == {}


def test_a_driver_that_was_cleaned_up_meanwhile_is_fenced_by_the_newer_one(link: TableLink) -> None:
    files = staged(link, ROWS)
    commit(link, staged(link, MORE, 2), 2, begun=BOTH)
    MemoryTableSink(link).clean_up(context(2, 1))
    assert isinstance(error_of(lambda: commit(link, files)), FencedError)
