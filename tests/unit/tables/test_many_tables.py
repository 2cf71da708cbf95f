"""Rows name their table: each table gets its rows once, in one commit per epoch, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import WriterInitContext
from outfall.cli.commands.gc import LeftoverCleaner
from outfall.errors import (
    CommitError,
    ConfigurationError,
    LostCommittableError,
    OutfallError,
    ResponsesError,
    TargetLostError,
    TargetNotEmptyError,
    ValueRefusedError,
)
from outfall.tables import routing
from outfall.tables.allowed import ByTable
from outfall.tables.options import TableOptions
from outfall.tables.routing import RoutedWriter
from outfall.tables.table import LoadedTable
from outfall.tables.writer import WrittenTable
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableStore
from tests.unit.support.memory_tables import MemoryTablesSink, links_to
from tests.unit.support.points import meanwhile
from tests.unit.support.table_epochs import ids, layout_of

POINTS = [
    "after BEGIN", "table: writing", "table: files synced", "before PREPARED", "after PREPARED", "after COMMITTING",
    "table: committing", "table: committed", "after COMMITTED", "before COMPLETED", "after COMPLETED",
]  # fmt: skip


def row(number: int, place: str | None) -> dict[str, Any]:
    return {"id": number, "text": f"{number}", "place": place}


def driver(links: Mapping[str, TableLink], recovery: MemoryRecoveryConfig, **options: Any) -> LocalDriver:
    return LocalDriver(MemoryTablesSink(links, **options), recovery, clock=FakeClock())


def written(links: Mapping[str, TableLink]) -> dict[str, list[int]]:
    return {name: ids(link) for name, link in links.items() if link.store.state}


def columns(link: TableLink) -> list[str]:
    return [] if link.store.state is None else list(link.store.state.columns)


def test_each_table_gets_its_rows_in_one_commit_per_epoch() -> None:
    links, recovery = links_to("t1", "t2", "t3"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2"), row(2, "t1")], [row(3, "t1")]])
    result = driver(links, recovery).run_epoch(1, [[row(4, "t2")], [row(5, "t3"), row(6, "t2")]])
    assert written(links) == {"t1": [0, 2, 3], "t2": [1, 4, 6], "t3": [5]}
    assert {name: len(link.store.history) for name, link in links.items()} == {"t1": 1, "t2": 2, "t3": 1}
    assert result.counts["max_tables"] == 2


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_each_table_gets_each_row_once_wherever_drivers_die(point: str, at_once: int) -> None:
    links, recovery = links_to("t1", "t2", absent=["t3"]), MemoryRecoveryConfig()
    tasks = [[[row(0, "t1"), row(1, "t2")], [row(2, "t1")]], [[row(3, "t3"), row(4, "t1")]], [], [[row(5, "t3")]]]
    for epoch, rows in enumerate(tasks):
        with crash_at(point):
            driver(links, recovery, create_table="if_missing", at_once=at_once).run_epoch(epoch, rows)
        driver(links, recovery, create_table="if_missing", at_once=at_once).run_epoch(epoch, rows)
    assert written(links) == {"t1": [0, 2, 4], "t2": [1], "t3": [3, 5]}
    for link in links.values():
        assert set(link.store.paths()) == link.store.named_paths()


def test_a_driver_that_died_between_two_commits_goes_on_with_the_second() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    with crash_at("after COMMITTED"):
        driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    assert written(links) == {"t1": [0], "t2": []}
    links["t1"].gone = True  # it is done, and the commit of the other one does not need it
    with pytest.raises(OutfallError):
        driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    assert ids(links["t2"]) == [1]


def test_a_table_that_cannot_be_committed_does_not_stop_the_others() -> None:
    links, recovery = links_to("t1", "t2", "t3"), MemoryRecoveryConfig()
    rows = [[row(0, "t1"), row(1, "t2"), row(2, "t3")]]
    links["t2"].fates = ["lost"] * 1000
    with pytest.raises(CommitError):
        driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [0], "t2": [], "t3": [2]}
    links["t2"].fates = []
    driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [0], "t2": [1], "t3": [2]}


def test_an_epoch_with_lost_files_is_written_again_while_no_table_has_it() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    rows = [[row(0, "t1"), row(1, "t2")]]
    with crash_at("after COMMITTING"):
        driver(links, recovery).run_epoch(0, rows)
    links["t1"].store.delete(links["t1"].store.paths()[0])
    driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [0], "t2": [1]}


def test_an_epoch_with_lost_files_that_another_table_has_stops_the_query() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    rows = [[row(0, "t1"), row(1, "t2")]]
    with crash_at("after COMMITTED"):
        driver(links, recovery).run_epoch(0, rows)
    links["t2"].store.delete(links["t2"].store.paths()[0])
    with pytest.raises(LostCommittableError):
        driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [0], "t2": []}


def test_a_table_is_met_and_created_at_its_first_row() -> None:
    links, recovery = links_to("t1", absent=["t9"]), MemoryRecoveryConfig()
    driver(links, recovery, create_table="if_missing").run_epoch(0, [[row(0, "t1")]])
    assert columns(links["t9"]) == []
    driver(links, recovery, create_table="if_missing").run_epoch(1, [[row(1, "t9")], [row(2, "t9")]])
    assert written(links) == {"t1": [0], "t9": [1, 2]}
    assert columns(links["t9"]) == ["id", "text"]


def test_a_table_that_was_dropped_after_rows_were_written_is_not_created_again() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery, create_table="if_missing").run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    driver(links, recovery, create_table="if_missing").run_epoch(1, [[row(2, "t1")]])
    links["t2"].store.drop()
    with pytest.raises(TargetLostError, match=r"epoch 0 was committed to it") as caught:
        driver(links, recovery, create_table="if_missing").run_epoch(2, [[row(3, "t1"), row(4, "t2")]])
    assert "The table 't2' is that of row 1 of the batch." in caught.value.__notes__
    assert links["t2"].store.state is None
    assert ids(links["t1"]) == [0, 2]


def test_a_table_that_was_rolled_back_is_noticed_when_rows_name_it() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    driver(links, recovery).run_epoch(1, [[row(2, "t1")]])
    links["t2"].store.rollback()
    driver(links, recovery).run_epoch(2, [[row(3, "t1")]])
    with pytest.raises(TargetLostError):
        driver(links, recovery).run_epoch(3, [[row(4, "t2")]])
    assert ids(links["t1"]) == [0, 2, 3]


def test_a_table_that_was_dropped_stops_no_other_one_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    links["t2"].store.drop()
    driver(links, recovery).run_epoch(1, [[row(2, "t1")]])
    assert "1 tables of epoch 0 are missing or were created again, such as 't2'" in caplog.text
    with pytest.raises(TargetLostError, match=r"rename it back, .* or create it without rows before"):
        driver(links, recovery).run_epoch(2, [[row(3, "t1"), row(4, "t2")]])
    assert ids(links["t1"]) == [0, 2]


@pytest.mark.parametrize("point", ["before PREPARED", "after PREPARED", "table: committed", "after COMMITTED"])
def test_a_dropped_table_that_was_created_without_rows_is_a_new_one(point: str) -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    links["t2"].store.drop()
    links["t2"].store.create({"id": "int64", "text": "string"})
    for epoch in (1, 2):
        rows = [[row(2 * epoch, "t1"), row(2 * epoch + 1, "t2")]]
        with crash_at(point):
            driver(links, recovery).run_epoch(epoch, rows)
        driver(links, recovery).run_epoch(epoch, rows)
    assert written(links) == {"t1": [0, 2, 4], "t2": [3, 5]}


def test_a_table_that_another_writer_created_and_filled_is_not_taken_for_a_new_one() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    links["t2"].store.drop()
    links["t2"].store.create({"id": "int64", "text": "string"})
    links["t2"].store.append({"id": 100, "text": "theirs"})
    driver(links, recovery).run_epoch(1, [[row(2, "t1")]])
    for _ in range(2):
        with pytest.raises(TargetLostError, match="has no record of this step"):
            driver(links, recovery).run_epoch(2, [[row(3, "t2")]])
        links["t2"].store.rollback()  # it had rows, though it has none now
    assert ids(links["t2"]) == []


def test_tables_that_are_all_missing_are_elsewhere() -> None:
    links, recovery = links_to("t1", "t2", "t3"), MemoryRecoveryConfig()
    for epoch, place in enumerate(["t1", "t2"]):
        driver(links, recovery, create_table="if_missing").run_epoch(epoch, [[row(epoch, place)]])
    for name in ("t1", "t2"):
        links[name].store.drop()
    with pytest.raises(TargetLostError, match="none of the 2 tables that this query has written to is there") as caught:
        driver(links, recovery, create_table="if_missing").run_epoch(2, [[row(2, "t3")]])
    assert "restore the tables, or rename them back" in str(caught.value)
    links["t1"].store.create({"id": "int64", "text": "string"})
    with pytest.raises(TargetLostError, match="none of the 2 tables"):
        driver(links, recovery).run_epoch(2, [[row(2, "t3"), row(3, "t1")]])
    links["t1"].store.undrop()
    driver(links, recovery).run_epoch(2, [[row(2, "t3"), row(3, "t1")]])
    assert (ids(links["t1"]), ids(links["t3"])) == ([0, 3], [2])


def test_a_driver_that_starts_checks_the_tables_of_the_last_epoch() -> None:
    """Its rows are skipped if Spark replays it."""
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    links["t2"].store.rollback()
    for epoch in (0, 1):
        with pytest.raises(TargetLostError):
            driver(links, recovery).run_epoch(epoch, [[row(2, "t1")]])
    assert ids(links["t1"]) == [0]


def test_a_table_is_written_again_after_epochs_in_which_others_were_written() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    for epoch, place in enumerate(["t1", "t2", "t2", "t2", "t1"]):
        driver(links, recovery).run_epoch(epoch, [[row(epoch, place)]])
    assert written(links) == {"t1": [0, 4], "t2": [1, 2, 3]}


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (None, "column 'place' is NULL in row 1 of the batch"),
        ("other", "allowed_tables does not allow the table 'other', which row 1 of the batch names"),
        (" ", "' ' in column 'place' of row 1 of the batch is not the name of a table"),
        ("t\n1", r"'t\\n1' in column 'place' of row 1 of the batch is not the name of a table"),
    ],
)
def test_a_row_whose_table_cannot_be_written_fails_with_table_and_row(place: str | None, what: str) -> None:
    links, recovery = links_to("t1"), MemoryRecoveryConfig()
    with pytest.raises(ValueRefusedError, match=what):
        driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, place)]])
    assert written(links) == {"t1": []}


def test_a_missing_table_fails_with_table_and_row() -> None:
    links, recovery = links_to("t1", absent=["t2"]), MemoryRecoveryConfig()
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
        driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    assert "The table 't2' is that of row 1 of the batch." in caught.value.__notes__


def test_a_value_that_a_table_refuses_names_the_table() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    rows = [[row(0, "t1"), {"id": 1 << 40, "text": "x", "place": "t2"}]]
    links["t2"].store.drop()
    links["t2"].store.create({"id": "int64", "text": "int64"})
    with pytest.raises(OutfallError, match="t2"):
        driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [], "t2": []}


def test_two_names_of_one_table_are_refused() -> None:
    one = TableLink(TableStore())
    links, recovery = {"t1": one, "T1": one}, MemoryRecoveryConfig()
    with pytest.raises(ConfigurationError, match="rows name one table in two ways, 't1' and 'T1'"):
        driver(links, recovery, allowed_tables=["t*", "T*"]).run_epoch(0, [[row(0, "t1")], [row(1, "T1")]])
    assert ids(one) == []


@pytest.mark.parametrize("options", [{}, {"on_existing": "overwrite"}], ids=str)
def test_two_names_of_one_table_in_different_epochs_are_refused(options: dict[str, Any]) -> None:
    one = TableLink(TableStore())
    links, recovery = {"t1": one, "T1": one}, MemoryRecoveryConfig()
    driver(links, recovery, allowed_tables=["t*", "T*"], **options).run_epoch(0, [[row(0, "t1")]])
    with pytest.raises(ConfigurationError, match="rows name one table in two ways, 't1' and 'T1'"):
        driver(links, recovery, allowed_tables=["t*", "T*"], **options).run_epoch(1, [[row(1, "T1")]])
    driver(links, recovery, allowed_tables=["t*", "T*"], **options).run_epoch(1, [[row(1, "t1")]])
    assert ids(one) == [0, 1]


def test_a_table_that_was_renamed_has_to_be_renamed_back() -> None:
    links, recovery = links_to("t1", "t2", absent=["t3"]), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    links["t2"], links["t3"] = links["t3"], links["t2"]
    with pytest.raises(ConfigurationError, match="'t3' has rows that this query wrote under another name") as caught:
        driver(links, recovery).run_epoch(1, [[row(2, "t3")]])
    assert "renamed, probably from 't2'" in str(caught.value)
    links["t2"], links["t3"] = links["t3"], links["t2"]
    driver(links, recovery).run_epoch(1, [[row(2, "t2")]])
    assert ids(links["t2"]) == [1, 2]


def test_a_table_that_changes_before_the_epoch_is_recorded_has_it_written_again() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()

    rows = [[row(0, "t1"), row(1, "t2")]]
    with (
        meanwhile("after collect", lambda: links["t2"].store.partition_by("text")),
        pytest.raises(ResponsesError, match="the table 't2' has changed while its rows were written"),
    ):
        driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [], "t2": []}
    driver(links, recovery).run_epoch(0, rows)
    assert written(links) == {"t1": [0], "t2": [1]}


def test_existing_rows_are_treated_table_by_table() -> None:
    links, recovery = links_to("t1", "t2", "t3"), MemoryRecoveryConfig()
    for name in ("t1", "t2", "t3"):
        links[name].store.append({"id": 100, "text": "theirs"})
    with pytest.raises(TargetNotEmptyError):
        driver(links, recovery, on_existing="error").run_epoch(0, [[row(0, "t1")]])
    for epoch, place in enumerate(["t1", "t2", "t1", "t2"]):
        driver(links, recovery, on_existing="overwrite").run_epoch(epoch, [[row(epoch, place)]])
    assert written(links) == {"t1": [0, 2], "t2": [1, 3], "t3": [100]}


def test_columns_that_a_table_lacks_are_left_out_where_they_are_null() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    links["t2"].store.add_column("more", "string")
    rows = [row(0, "t1") | {"more": None}, row(1, "t2") | {"more": "x"}]
    with pytest.raises(OutfallError):
        driver(links, recovery).run_epoch(0, [rows])
    driver(links, recovery, unknown_columns="leave_out_null").run_epoch(0, [rows])
    assert written(links) == {"t1": [0], "t2": [1]}
    assert [each["more"] for each in links["t2"].store.rows()] == ["x"]
    with pytest.raises(ValueRefusedError, match=r"the table 't1' has no column 'more', in which row 0 .* has a value"):
        driver(links, recovery, unknown_columns="leave_out_null").run_epoch(1, [[row(2, "t1") | {"more": "y"}]])


@pytest.mark.parametrize("number", [None, 1])
def test_a_table_without_any_column_of_the_rows_is_refused(number: int | None) -> None:
    links, recovery = links_to("t1"), MemoryRecoveryConfig()
    links["t1"].store.drop()
    links["t1"].store.create({"other": "string"})
    with pytest.raises(ConfigurationError, match="has none of the columns of the rows"):
        driver(links, recovery, unknown_columns="leave_out_null").run_epoch(0, [[{"id": number, "place": "t1"}]])


def test_a_column_that_an_option_names_is_not_left_out() -> None:
    links, recovery = links_to("t1"), MemoryRecoveryConfig()
    options = {"unknown_columns": "leave_out_null", "partition_by": "v"}
    with pytest.raises(ConfigurationError, match="lacks 'v', which an option of the sink names") as caught:
        driver(links, recovery, **options).run_epoch(0, [[row(0, "t1") | {"v": None}]])
    assert "add the columns to the table" in str(caught.value)


def test_rows_need_a_column_besides_that_of_their_table() -> None:
    with pytest.raises(ConfigurationError, match="the rows have no column that is stored"):
        driver(links_to("t1"), MemoryRecoveryConfig()).run_epoch(0, [[{"place": "t1"}]])
    with pytest.raises(ConfigurationError, match="the rows have no column that is stored"):
        MemoryTablesSink(links_to("t1")).check_schema(pa.schema({"place": pa.string()}))


def test_columns_that_tables_lack_are_added_if_the_option_says_so() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    rows = [row(0, "t1") | {"more": "x"}]
    driver(links, recovery, schema_evolution="add_columns").run_epoch(0, [rows])
    assert [each["more"] for each in links["t1"].store.rows()] == ["x"]
    assert columns(links["t2"]) == ["id", "text"]


def test_tables_get_the_columns_that_are_listed_for_them() -> None:
    links, recovery = links_to("t1", "t2", absent=["t3"]), MemoryRecoveryConfig()
    options = {
        "create_table": "if_missing", "schema_evolution": "add_columns", "unknown_columns": "leave_out_null",
        "table_columns": {"t1": ["more"], "t*": ["id", "other"]},
    }  # fmt: skip
    extra = dict.fromkeys(("more", "other"))
    bare = extra | {"id": 2, "text": None, "place": "t3"}
    rows = [
        row(0, "t1") | extra | {"more": "x"},
        row(1, "t2") | extra,
        bare | {"other": "y"},
    ]
    driver(links, recovery, **options).run_epoch(0, [rows])
    assert [columns(links[name]) for name in ("t1", "t2", "t3")] == [
        ["id", "text", "more"],
        ["id", "text", "other"],
        ["id", "other"],
    ]
    with pytest.raises(ValueRefusedError, match="the table 't3' has no column 'text', in which row 0"):
        driver(links, recovery, **options).run_epoch(1, [[row(3, "t3") | extra]])
    with pytest.raises(ConfigurationError, match=r"table_columns of 't1' requires the column 'none'"):
        MemoryTablesSink(links, unknown_columns="leave_out_null", table_columns={"t1": "none"}).check_schema(
            pa.schema({"id": pa.int64(), "place": pa.string()})
        )


def test_within_another_sink_each_table_gets_each_row_once() -> None:
    links, one, recovery = links_to("t1", "t2"), TableLink(TableStore()), MemoryRecoveryConfig()
    one.store.add_column("place", "string")

    def run(epoch: int, rows: Any) -> None:
        sink = FanOutSink(many=MemoryTablesSink(links), one=MemoryTableSink(one))
        LocalDriver(sink, recovery, clock=FakeClock()).run_epoch(epoch, rows)

    for epoch, place in enumerate(["t1", "t2", "t1"]):
        with crash_at("after COMMITTED"):
            run(epoch, [[row(epoch, place)]])
        run(epoch, [[row(epoch, place)]])
    assert written(links) == {"t1": [0, 2], "t2": [1]}
    links["t2"].store.drop()
    with pytest.raises(TargetLostError):
        run(3, [[row(3, "t2")]])


def test_what_is_left_of_failed_attempts_is_removed_from_all_tables() -> None:
    links, recovery = links_to("t1", "t2", "t3"), MemoryRecoveryConfig()
    with crash_at("before PREPARED"):
        driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    assert [bool(link.store.paths()) for link in links.values()] == [True, True, False]
    driver(links, recovery).run_epoch(0, [[row(0, "t3")]])
    assert [len(link.store.paths()) for link in links.values()] == [0, 0, 1]


def test_tables_with_one_root_keep_the_files_of_each_other() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    store, other = links["t1"].store, links["t2"].store
    other.name, other.files = store.name, store.files
    for epoch, place in enumerate(["t1", "t2", "t1", "t2"]):
        with crash_at("before PREPARED"):
            driver(links, recovery).run_epoch(epoch, [[row(100, "t1"), row(101, "t2")]])
        driver(links, recovery).run_epoch(epoch, [[row(epoch, place)]])
    cleaner = LeftoverCleaner(MemoryTablesSink(links), recovery, "sink")
    with crash_at("before PREPARED"):
        driver(links, recovery).run_epoch(4, [[row(100, "t1"), row(101, "t2")]])
    assert cleaner.clean_up(take_over=True) == 2
    assert set(store.paths()) == store.named_paths() | other.named_paths()
    assert written(links) == {"t1": [0, 2], "t2": [1, 3]}


def test_a_table_that_was_created_again_in_its_place_keeps_the_files_of_the_former_one() -> None:
    links, recovery = links_to("t1", "t2"), MemoryRecoveryConfig()
    driver(links, recovery).run_epoch(0, [[row(0, "t1"), row(1, "t2")]])
    former, store = links["t1"].store.state, links["t1"].store
    kept = store.named_paths()
    store.drop()
    store.create({"id": "int64", "text": "string"})
    with crash_at("before PREPARED"):
        driver(links, recovery).run_epoch(1, [[row(2, "t1")]])
    driver(links, recovery).run_epoch(1, [[row(2, "t1")]])
    LeftoverCleaner(MemoryTablesSink(links), recovery, "sink").clean_up(take_over=False)
    assert former is not None
    assert set(store.paths()) == store.named_paths() | kept


def test_a_foreign_table_that_cannot_be_read_stops_no_clean_up(caplog: pytest.LogCaptureFixture) -> None:
    class WithForeign(MemoryTablesSink):
        def load(self) -> LoadedTable | None:
            if self._name == "t0":
                raise ConfigurationError("the table t0 has format version 1")
            return super().load()

    links, recovery = links_to("t0", "t1", "t2"), MemoryRecoveryConfig()
    with crash_at("before PREPARED"):
        LocalDriver(WithForeign(links), recovery, clock=FakeClock()).run_epoch(0, [[row(0, "t1")]])
    LocalDriver(WithForeign(links), recovery, clock=FakeClock()).run_epoch(0, [[row(0, "t2")]])
    assert links["t1"].store.paths() == []
    assert "is not cleaned up, and other tables are: the table t0 has format version 1" in caplog.text
    cleaner = LeftoverCleaner(WithForeign(links), recovery, "sink")
    assert cleaner.find(take_over=False).names == []


# --- a task


class Met:
    """Meets so many tables at the same time, each only together with others."""

    def __init__(self, links: Mapping[str, TableLink], at_once: int) -> None:
        self.at_once = at_once
        self._links = links
        self._together = Barrier(at_once, timeout=20)

    def __call__(self, name: str, rows: pa.Schema) -> tuple[WrittenTable, frozenset[str]]:
        self._together.wait()
        return WrittenTable(layout_of(self._links[name]), None, "outfall/0123456789abcdef/g1-1", name), frozenset()


def routed(links: Mapping[str, TableLink], at_once: int = 1, **options: Any) -> RoutedWriter:
    given = TableOptions(**{"table_column": "place", "allowed_tables": "t*", **options})
    context = WriterInitContext("sink", "0123456789abcdef", 1, 0, None, 0, token="1")
    return RoutedWriter(Met(links, at_once), context, given)


def test_tables_are_met_at_the_same_time() -> None:
    names = [f"t{number}" for number in range(6)]
    part = routed(links_to(*names), at_once=3)
    part.write_batch([row(number, name) for number, name in enumerate(names)])
    assert len(part.prepare_commit()) == len(names)
    part.close()


def test_tables_that_take_turns_have_one_file_each_and_few_are_open() -> None:
    names = [f"t{number}" for number in range(30)]
    links = links_to(*names)
    part = routed(links, max_open_files=3)
    for begin in range(0, 3000, 100):
        part.write_batch([row(number, names[number % 30]) for number in range(begin, begin + 100)])
    found = part.prepare_commit()
    part.close()
    assert [(each.table, len(each.files), each.rows) for each in found] == [(name, 1, 100) for name in names]


def test_rows_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_MOST_WAITING", 10_000)
    names = [f"t{number}" for number in range(10)]
    part = routed(links_to(*names), max_open_files=2)
    most = 0
    for begin in range(0, 5000, 100):
        part.write_batch([row(number, names[number % 10]) for number in range(begin, begin + 100)])
        most = max(most, sum(each.nbytes for each in part._waiting))
        assert len(part._open) <= 2
    assert most < 10_000
    assert sum(each.rows for each in part.prepare_commit()) == 5000
    part.close()


def test_a_task_without_rows_has_no_result() -> None:
    assert routed(links_to("t1")).prepare_commit() == []


# --- options


@pytest.mark.parametrize(
    ("entry", "name", "allows"),
    [
        (("db", "t*"), ("db", "tenant"), True),
        (("db", "t*"), ("db", "t"), True),
        (("db", "t*"), ("other", "tenant"), False),
        (("db", "*"), ("db", "a.b"), True),  # a part is a part, whatever is in it
        (("db", "t*"), ("db", "t\n1"), True),
        (("*",), ("db", "t"), False),
        (("db", "t"), ("db", "T"), False),
        (("db", "t.x"), ("db", "tyx"), False),
        (("te*_events", "t"), ("tenant_events", "t"), True),
    ],
)
def test_a_pattern_stands_within_a_part_of_a_name(entry: tuple[str, ...], name: tuple[str, ...], allows: bool) -> None:
    assert bool(ByTable([(entry, True)]).find(name)) is allows


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"allowed_tables": ()}, "table_column needs allowed_tables"),
        ({"allowed_tables": [" "]}, "the entry ' ' of allowed_tables has a blank part"),
        ({"table_column": None}, "allowed_tables is an option of table_column"),
        ({"partition_by": "place"}, "table_column is not stored"),
        ({"unknown_columns": "leave_out_null", "schema_evolution": "add_columns"}, "exclude each other"),
        ({"table_columns": {"t1": "a"}}, "table_columns needs unknown_columns='leave_out_null'"),
        ({"table_columns": {" ": "a"}, "unknown_columns": "leave_out_null"}, "the entry ' ' of table_columns has a"),
        ({"table_columns": {"t1": ["a", "place"]}, "unknown_columns": "leave_out_null"}, "table_column is not stored"),
        ({"table_columns": "t1"}, 'such as {"orders":'),
        ({"table_columns": '{"t1": []}'}, "has no name for 't1'"),
        ({"table_columns": '{"t1": "a,a"}'}, "has a name twice for 't1'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TableOptions(**{"table_column": "place", "allowed_tables": "t*", **options})


def test_a_column_of_another_type_cannot_name_tables() -> None:
    sink = MemoryTablesSink(links_to("t1"))
    with pytest.raises(ConfigurationError, match="table_column 'place' is of type int"):
        sink.check_schema(pa.schema({"id": pa.int64(), "place": pa.int32()}))
    with pytest.raises(ConfigurationError, match="table_column requires the column 'place'"):
        sink.check_schema(pa.schema({"id": pa.int64()}))
