"""An epoch that upserts or deletes by key comes to the same as its rows, had each arrived alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.tables import merge
from outfall.tables.changes import Keys
from outfall.tables.merge import Merge, MergeRows
from tests.unit.support.keyed_table import KeyedMemoryTable, KeyedStep
from tests.unit.tables.test_changes import SCHEMA, Row, arrive_alone

COLUMNS = {name: str(SCHEMA.field(name).type) for name in SCHEMA.names}
KEYED = {"key_columns": ("k",)}
STAGED = SCHEMA.append(pa.field("gone", pa.bool_()))


def step(**given: Any) -> KeyedStep:
    return KeyedStep(COLUMNS, KEYED | given)


def row(k: int | None, v: str = "", o: int | None = None, w: str | None = None) -> Row:
    return {"k": k, "l": "l", "o": o, "v": v, "w": w}


def sorted_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(repr({name: each[name] for name in SCHEMA.names}) for each in rows)


def random_row(choices: random.Random, number: int) -> Row:
    return row(choices.choice([None, 1, 2, 3, 4]), f"v{number}", choices.choice([None, 1, 2, 3]), f"w{number}") | {
        "l": choices.choice(["a", "b"])
    }


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({}, Keys(("k",))),
        ({"order_column": "o"}, Keys(("k",), "o")),
        ({"delete_marker": "gone"}, Keys(("k",), marker="gone")),
        ({"delete_marker": "gone", "order_column": "o"}, Keys(("k",), "o", "gone")),
        ({"update_columns": ("v",), "delete_marker": "gone"}, Keys(("k",), marker="gone", updated=frozenset({"v"}))),
        (
            {"update_columns": ("v",), "order_column": "o", "key_columns": ("k", "l")},
            Keys(("k", "l"), "o", updated=frozenset({"v", "o"})),
        ),
        ({"write_mode": "delete"}, Keys(("k",), all_gone=True)),
        ({"write_mode": "delete", "key_columns": ("k", "l")}, Keys(("k", "l"), all_gone=True)),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_an_epoch_comes_to_what_its_rows_come_to_one_by_one(
    given: dict[str, Any], keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "_ROWS", 2)
    choices = random.Random(str(given))
    for _ in range(2):
        found = step(**given)
        # A key is unique in a table that was only ever written so, but NULL equals nothing.
        stored: list[Row] = []
        for number in range(12):
            one = random_row(choices, number)
            if not any(all(one[key] is not None and each[key] == one[key] for key in keys.names) for each in stored):
                stored.append(one)
        for begin in range(0, len(stored), 3):
            found.append(stored[begin : begin + 3])
        rows = [random_row(choices, 100 + number) | {"gone": choices.random() < 0.4} for number in range(8)]
        if keys.marker is None:
            rows = [{**each, "gone": False} for each in rows]
        # Rows whose key is NULL cannot be written by key, and each stays for itself.
        rows = [each for each in rows if each["k"] is not None]
        staged = STAGED if keys.marker else pa.schema([each for each in STAGED if each.name != "gone"])
        if keys.all_gone:
            staged = pa.schema([SCHEMA.field(name) for name in keys.names])
        table = pa.Table.from_pylist([{name: each[name] for name in staged.names} for each in rows], schema=staged)
        expected = stored
        # Sorting keeps the write order of equal values. A removal is applied in the place of its value.
        in_time = sorted(rows, key=lambda each: (each["o"] is not None, each["o"] or 0)) if keys.order else rows
        for each in in_time:
            expected = arrive_alone(expected, each, keys)
        found.merge(found.stage(table.slice(0, 3), table.slice(3)))
        assert sorted_rows(found.rows) == sorted_rows(expected)


def test_only_files_that_change_are_replaced_and_only_those_that_may_have_a_key_are_read() -> None:
    found = step()
    paths = [found.append([row(1, "a"), row(2, "b")]), found.append([row(3, "c")]), found.append([row(4, "d")])]
    table = found.load()
    table.bounds = {paths[0]: ("k", 1, 2), paths[1]: ("k", 3, 3)}
    assert found.merge(found.stage([row(2, "B"), row(5, "E")]), table) == {
        "rows_changed": 2, "rows_updated": 1, "rows_inserted": 1, "files_replaced": 1,
    }  # fmt: skip
    assert set(table.read) == {paths[0], paths[2]}
    kept = {entry.path for entry in found.link.store.state.current.entries}  # type: ignore[union-attr]
    assert kept & set(paths) == set(paths[1:])
    assert sorted_rows(found.rows) == sorted_rows([row(1, "a"), row(2, "B"), row(3, "c"), row(4, "d"), row(5, "E")])


def test_a_row_that_is_newer_or_removed_already_replaces_no_file() -> None:
    found = step(order_column="o", delete_marker="gone")
    path = found.append([row(1, "a", 9)])
    counts = found.merge(found.stage([row(1, "old", 8) | {"gone": False}, row(2, "", 1) | {"gone": True}]))
    assert counts == {}
    assert [entry.path for entry in found.link.store.state.current.entries] == [path]  # type: ignore[union-attr]
    # The same value is no newer: the last row written wins.
    assert found.merge(found.stage([row(1, "same", 9) | {"gone": False}]))["rows_updated"] == 1
    assert sorted_rows(found.rows) == sorted_rows([row(1, "same", 9)])
    assert found.merge(found.stage([row(1, "", 9) | {"gone": True}])) == {
        "rows_changed": 1, "rows_deleted": 1, "files_replaced": 1,
    }  # fmt: skip
    assert found.rows == []


def test_rows_of_a_large_file_are_found_by_their_place_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.tables.stored_rows._BATCH_ROWS", 1)  # so as few as it ever reads at once: 1024
    found = step()
    found.append([row(number, "many") for number in range(1200)])
    assert found.merge(found.stage([row(3, "A"), row(1100, "B")]))["rows_updated"] == 2
    rows = {each["k"]: each["v"] for each in found.rows}
    assert len(rows) == len(found.rows) == 1200
    assert {key: value for key, value in rows.items() if len(value) == 1} == {3: "A", 1100: "B"}


def test_columns_that_rows_lack_stay_and_are_null_in_new_rows() -> None:
    found = step()
    found.append([row(1, "a", 5, "w")])
    found.merge(found.stage([{"k": 1, "v": "A"}, {"k": 2, "v": "B"}]))
    assert sorted_rows(found.rows) == sorted_rows([row(1, "A", 5, "w"), row(2, "B") | {"l": None}])


def test_rows_that_are_only_keys_insert_and_update_nothing() -> None:
    found = step()
    found.append([row(1, "a")])
    assert found.merge(found.stage([{"k": 1}, {"k": 2}])) == {"rows_changed": 1, "rows_inserted": 1}
    assert sorted(each["k"] for each in found.rows) == [1, 2]


def test_the_first_epoch_that_overwrites_keeps_nothing_of_the_table() -> None:
    for rows, left in (([row(2, "b")], [row(2, "b")]), ([], [])):
        found = step(on_existing="overwrite")
        found.link.store.append(row(1, "theirs"))
        files = found.stage([row(2, "b")])
        found.merge(files if rows else files.without_files())
        assert sorted_rows(found.rows) == sorted_rows(left)
    found.merge(found.stage([row(3)]).without_files())
    found.append([row(4)])
    found.merge(found.stage([row(5)]).without_files())  # a later epoch without rows
    assert [each["k"] for each in found.rows] == [4]


def test_a_file_that_cannot_be_removed_stops_the_merge_and_leaves_nothing() -> None:
    found = step()
    path = found.append([row(1, "a")])
    table = found.load()
    table.kept = {path}
    files = found.stage([row(1, "A")])
    before = set(found.link.store.paths())
    with pytest.raises(ConfigurationError, match="cannot be removed"):
        found.merge(files, table)
    assert sorted_rows(found.rows) == sorted_rows([row(1, "a")])
    assert set(found.link.store.paths()) == before


def test_merged_files_that_another_tool_has_removed_are_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    for may_lack in (True, False):
        found = step()
        table, files = found.load(), found.stage([row(1, "a")])
        monkeypatch.setattr(table, "may_lack_files", lambda record, may_lack=may_lack: may_lack)
        area = type(table.files.area)
        monkeypatch.setattr(area, "damaged", lambda self, directory, sizes: dict.fromkeys(sizes))
        if may_lack:
            with pytest.raises(TransientError, match=r"1 files of this merge are missing, such as .*exclude them"):
                found.merge(files, table)
        else:
            found.merge(files, table)
        assert len(found.rows) == (0 if may_lack else 1)
        monkeypatch.undo()


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_disk_that_fails_is_not_tried_again(on_disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = step()
    table, files = found.load(), found.stage([row(1, "a")])
    table.on_disk = on_disk

    def full(writer: object, rows: object) -> None:
        raise TransientError("the disk is full", why="there is no space")

    monkeypatch.setattr("outfall.tables.merge.TableWriter.write_record_batch", full)
    with pytest.raises(
        TargetError if on_disk else TransientError, match=r"the disk is full.*There is no space"
    ) as caught:
        found.merge(files, table)
    assert isinstance(caught.value, TransientError) != on_disk
    if on_disk:
        assert (caught.value.step, caught.value.epoch) == ("sink", 1)


def test_changes_that_need_too_much_memory_are_refused_after_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    found = step(max_merge_bytes=1 << 20)
    budget = merge._Budget(found.options, found.context(3))
    budget(1 << 19)
    assert not caplog.records
    budget(1)
    budget((1 << 19) - 1)
    assert [each.getMessage() for each in caplog.records] == [
        "step sink, epoch 3: its changes need more than half of max_merge_bytes (1 MiB), beyond which no epoch is"
        " written; give epochs fewer rows, or raise it"
    ]
    with pytest.raises(ConfigurationError, match=r"epoch 3 need more memory than max_merge_bytes \(1 MiB\)"):
        budget(1)


def test_an_attempt_writes_files_of_its_own() -> None:
    found = step()
    files = found.stage([row(1)])
    attempts = {Merge(found.options, found.load(), files, found.context(1))._writer_context().attempt for _ in range(8)}
    assert len(attempts) == 8
    assert min(attempts) >= 1 << 62  # no task has one
    assert max(attempts) < 1 << 63


def test_the_files_of_the_merge_that_was_committed_are_kept() -> None:
    found = step()
    first = found.stage([row(1)])
    found.merge(first)
    kept = found.mode.kept(first)
    assert kept is not None
    assert set(kept) == {entry.path.rpartition("/")[2] for entry in found.link.store.state.current.entries}  # type: ignore[union-attr]
    assert not set(kept) & first.names
    assert set(kept) < set(found.mode.written(first, found.load().files.area))
    # Of another epoch, or without a table or a record, nobody can tell.
    second = found.stage([row(2)])
    assert found.mode.kept(second) is None
    found.link.store.remove_record()
    assert found.mode.kept(first) is None
    assert MergeRows(found.options, lambda: None).kept(first) is None


def test_only_upserts_write_results_that_change() -> None:
    assert step().mode.output_modes != step(write_mode="delete").mode.output_modes
    assert MergeRows.reads_files
    assert isinstance(step().load(), KeyedMemoryTable)


def test_values_of_a_delete_outside_its_key_are_not_converted() -> None:
    step = KeyedStep({"id": "int64", "n": "int64"}, {"key_columns": "id", "delete_marker": "gone"})
    step.append([{"id": 1, "n": 5}, {"id": 2, "n": 6}])
    step.merge(step.stage([{"id": 1, "n": "", "gone": True}, {"id": 2, "n": "7", "gone": False}]))
    assert step.rows == [{"id": 2, "n": 7}]
