"""The table before an epoch: whose it is, what it has lost, and what is made of it. Nothing is written when refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee
from outfall.errors import (
    ConfigurationError,
    FencedError,
    OutfallError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
)
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableStore
from tests.unit.support.points import error_of
from tests.unit.support.table_epochs import ids


class TableQuery:
    """A query with its recovery data, and one table."""

    def __init__(self, link: TableLink | None = None) -> None:
        self.link = link or TableLink(TableStore())
        self.recovery = MemoryRecoveryConfig()

    def sink(self, **options: Any) -> MemoryTableSink:
        return MemoryTableSink(self.link, **options)

    def run(self, epoch: int, *rows: int, columns: pa.Schema | None = None, **options: Any) -> bool:
        sink = self.sink(**options)
        if columns is not None:
            sink.check_schema(columns)
        driver = LocalDriver(sink, self.recovery, clock=FakeClock())
        names = columns.names if columns is not None else ["id", "text"]
        batch = [{name: number if name == "id" else f"{number}" for name in names} for number in rows]
        return driver.run_epoch(epoch, [batch] if batch else []).skipped

    def refused(self, epoch: int, **options: Any) -> OutfallError | None:
        """Try an epoch, and see that nothing was written, to the table or beside it."""
        state, paths = self.link.store.state, self.link.store.paths()
        error = error_of(lambda: self.run(epoch, 7, 8, **options))
        if error is not None:
            assert (self.link.store.state, self.link.store.paths()) == (state, paths)
        return error


@pytest.fixture
def query() -> TableQuery:
    return TableQuery()


def test_it_says_exactly_once(query: TableQuery) -> None:
    assert query.sink().guarantee() is Guarantee.EXACTLY_ONCE


# --- first contact


@pytest.mark.parametrize("on_existing", ["check", "resume"])
def test_rows_of_others_are_kept(query: TableQuery, on_existing: str) -> None:
    query.link.store.append({"id": 100, "text": "x"})
    query.run(0, 1, on_existing=on_existing)
    query.run(1, 2, on_existing=on_existing)
    assert ids(query.link) == [1, 2, 100]


def test_rows_of_this_step_under_another_checkpoint_are_refused(query: TableQuery) -> None:
    query.run(0, 1)
    newer = TableQuery(query.link)
    assert isinstance(newer.refused(0), TargetNotEmptyError)
    assert not newer.run(0, 2, on_existing="resume")
    assert ids(query.link) == [1, 2]


def test_error_refuses_any_row(query: TableQuery) -> None:
    query.link.store.append({"id": 100, "text": "x"})
    assert isinstance(query.refused(0, on_existing="error"), TargetNotEmptyError)


def test_error_takes_an_empty_table_and_its_own_rows_later(query: TableQuery) -> None:
    query.run(0, 1, on_existing="error")
    query.run(1, 2, on_existing="error")
    assert ids(query.link) == [1, 2]


@pytest.mark.parametrize("rows", [(1,), ()], ids=["with rows", "without rows"])
def test_overwrite_removes_what_was_there_with_the_first_epoch(query: TableQuery, rows: tuple[int, ...]) -> None:
    query.link.store.append({"id": 100, "text": "x"})
    query.run(0, *rows, on_existing="overwrite")
    assert ids(query.link) == list(rows)
    query.link.store.append({"id": 101, "text": "x"})
    query.run(1, 2, on_existing="overwrite")
    assert ids(query.link) == [*rows, 2, 101]


def test_overwrite_removes_nothing_before_the_first_epoch_is_committed(query: TableQuery) -> None:
    query.link.store.append({"id": 100, "text": "x"})
    with crash_at("before PREPARED"):
        query.run(0, 1, on_existing="overwrite")
    assert ids(query.link) == [100]


# --- what the table has lost


def made_anew(store: TableStore) -> None:
    store.drop()
    store.create({"id": "int64", "text": "string"})


LOSSES: dict[str, Callable[[TableStore], None]] = {
    "dropped": TableStore.drop,
    "made anew": made_anew,
    "rolled back": TableStore.rollback,
    "without its properties": TableStore.remove_record,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("empty", [0, 3], ids=["at once", "after epochs without rows"])
def test_a_table_that_lost_an_epoch_is_refused_before_rows_are_written(
    query: TableQuery, name: str, empty: int
) -> None:
    query.run(0, 1)
    query.run(1, 2)
    for epoch in range(2, 2 + empty):
        query.run(epoch)
    LOSSES[name](query.link.store)
    assert isinstance(query.refused(2 + empty), TargetLostError)


@pytest.mark.parametrize("empty", [0, 1, 2, 3])
def test_a_table_that_was_restored_from_a_copy_is_refused(query: TableQuery, empty: int) -> None:
    """After epochs without rows the log has forgotten the BEGIN that the table names: epochs must tell."""
    query.run(0, 1)
    copy = query.link.store.state
    query.run(1, 2)
    for epoch in range(2, 2 + empty):
        query.run(epoch)
    query.link.store.state = copy
    assert isinstance(query.refused(2 + empty), TargetLostError)


def test_recovery_data_that_was_restored_from_a_copy_is_refused(query: TableQuery) -> None:
    query.run(0, 1)
    copy = dict(query.recovery.files)
    query.run(1, 2)
    query.recovery.files = copy
    for _ in range(2):
        assert isinstance(query.refused(1), TargetAheadError)


def test_epochs_without_rows_commit_nothing_and_may_be_many(query: TableQuery) -> None:
    query.run(0, 1)
    for epoch in range(1, 6):
        query.run(epoch)
    assert len(query.link.store.history) == 1
    query.run(6, 2)
    query.link.store.append({"id": 100, "text": "x"})
    query.link.store.expire()
    query.run(7, 3)
    assert ids(query.link) == [1, 2, 3, 100]


def test_of_two_queries_on_copies_of_one_log_the_second_is_refused_after_epochs_without_rows() -> None:
    """Neither knows the other's BEGIN any more; the table names an epoch that the second one has not published."""
    one = TableQuery()
    one.run(0, 1)
    other = TableQuery(one.link)
    other.recovery.files = dict(one.recovery.files)
    for epoch in range(1, 4):
        other.run(epoch)
    one.run(1, 2)
    assert isinstance(other.refused(4), TargetLostError | FencedError)
    one.run(2, 3)
    assert ids(one.link) == [1, 2, 3]


def test_two_queries_write_one_table(query: TableQuery) -> None:
    other = TableQuery(query.link)
    # Of another step: the same one under another checkpoint is refused.
    for epoch in range(3):
        query.run(epoch, epoch)
        LocalDriver(other.sink(), other.recovery, step_id="other").run_epoch(epoch, [[{"id": 10 + epoch, "text": ""}]])
    assert ids(query.link) == [0, 1, 2, 10, 11, 12]


# --- what is made

COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string())])
MORE = pa.schema([*COLUMNS, ("more", pa.string())])


def test_a_table_that_is_missing_is_refused_or_made(query: TableQuery) -> None:
    query.link.store.drop()
    error = query.refused(0, columns=COLUMNS)
    assert isinstance(error, ConfigurationError)
    assert "create_table" in str(error)
    query.run(0, 1, columns=COLUMNS, create_table="if_missing", partition_by="text")
    assert query.link.store.state
    assert query.link.store.state.spec == ("text",)
    assert ids(query.link) == [1]


def test_a_table_that_is_missing_cannot_be_made_of_unknown_columns(query: TableQuery) -> None:
    query.link.store.drop()
    assert isinstance(error_of(lambda: query.run(0, 1, create_table="if_missing")), ConfigurationError)


def test_new_columns_are_refused_or_added(query: TableQuery) -> None:
    query.run(0, 1, columns=COLUMNS)
    assert isinstance(query.refused(1, columns=MORE), ConfigurationError)
    query.run(1, 2, columns=MORE, schema_evolution="add_columns")
    assert [row["more"] for row in query.link.store.rows()] == [None, "2"]


def test_a_table_that_others_made_meanwhile_is_taken(query: TableQuery) -> None:
    query.link.store.drop()
    sink = query.sink(create_table="if_missing")
    sink.check_schema(COLUMNS)
    query.link.store.create({"id": "int64", "text": "string", "theirs": "int64"})
    LocalDriver(sink, query.recovery).run_epoch(0, [[{"id": 1, "text": "a"}]])
    assert query.link.store.rows() == [{"id": 1, "text": "a", "theirs": None}]


def test_a_table_that_is_dropped_after_it_was_checked_is_written_anew_or_refused(query: TableQuery) -> None:
    with crash_at("after PREPARED"):
        query.run(0, 1, columns=COLUMNS)
    query.link.store.drop()
    assert not query.run(0, 2, columns=COLUMNS, create_table="if_missing")
    assert ids(query.link) == [2]


def test_a_catalogue_that_does_not_answer_is_an_error_that_may_pass(query: TableQuery) -> None:
    query.link.gone = True
    assert isinstance(query.refused(0), TransientError)


@pytest.mark.parametrize("write_mode", ["append", "overwrite_partitions"])
def test_rows_that_come_again_are_refused(query: TableQuery, write_mode: str) -> None:
    """A partition whose groups have all gone is not touched by an epoch, and would keep them."""
    assert query.sink(write_mode=write_mode).output_modes() == ("append",)
