"""`upsert` and `delete` into tables of both formats: what they hold, beside rows that arrive one by one."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, EpochAbandonedError, ValueRefusedError
from outfall.tables import merge as merging
from outfall.tables.stored_rows import StoredRows
from outfall.testing import crash_at
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.integration.support.iceberg_epochs import Lake
from tests.integration.support.keyed_rows import COLUMNS, UPSERT, Place, Row, row, rows, upserting
from tests.one_each import thorough


@pytest.fixture(params=[Shore, Lake], ids=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


def arrive(table: dict[Any, Row], given: Row, keys: Sequence[str]) -> None:
    """Change the table as one row does that arrives alone. Its keys are unique, and no key is NULL."""
    key = tuple(given[name] for name in keys)
    theirs = table.get(key)
    newer = theirs is not None and theirs["seq"] is not None and (given["seq"] is None or theirs["seq"] > given["seq"])
    if newer:
        return
    if given["gone"]:
        table.pop(key, None)
    else:
        table[key] = {name: value for name, value in given.items() if name != "gone"}


@pytest.mark.thorough
@pytest.mark.parametrize("keys", [["id"], thorough(["id", "part"]), thorough(["part", "id"])], ids=str)
@pytest.mark.parametrize("partitioned", [thorough(()), ("part",)], ids=["unpartitioned", "partitioned"])
@pytest.mark.parametrize("seed", [0, thorough(1)])
def test_epochs_come_to_what_their_rows_come_to_one_by_one(
    place: Place, keys: list[str], partitioned: tuple[str, ...], seed: int
) -> None:
    chance = random.Random(seed)
    place.make(COLUMNS, *partitioned)
    driver = upserting(place, key_columns=keys)
    table: dict[Any, Row] = {}
    for epoch in range(8):
        given = [
            row(chance.randint(1, 30), chance.choice([None, *range(20)]), chance.choice("abc"), chance.random() < 0.2,
                f"{epoch}/{number}") for number in range(chance.choice([1, 5, 40]))
        ]  # fmt: skip
        driver.write(epoch, *(rows(*given[begin : begin + 15]) for begin in range(0, len(given), 15)))
        for each in sorted(given, key=lambda each: (each["seq"] is not None, each["seq"] or 0)):
            arrive(table, each, keys)
        found = {tuple(each[name] for name in keys): each for each in place.rows()}
        # Between tasks any row of equal order may win, and here they have an order.
        assert found == table, f"epoch {epoch}"
        assert len(found) == len(place.rows())
    assert place.left_over() == set()
    assert place.commits == 8


def test_a_delete_removes_rows_by_their_keys_and_nothing_else(place: Place) -> None:
    place.make(COLUMNS, "part")
    place.append(rows(row(1), row(2), row(3, part="b"), row(4, part=None)).drop_columns(["gone"]))
    driver = place.driver(write_mode="delete", key_columns=["id", "part"])
    found = driver.write(0, batch(id=[1, 2, 3, 9], part=["a", "b", "b", "a"], extra=[1, 2, 3, 5]))
    assert place.rows("id") == [2, 4]
    assert found.counts["rows_deleted"] == found.counts["rows_changed"] == 2


def test_null_in_a_key_is_refused_since_one_epoch_would_keep_one_row_and_two_would_keep_two(place: Place) -> None:
    place.make(COLUMNS)
    driver = upserting(place)
    for gone in (False, True):
        with pytest.raises(ValueRefusedError, match="the key column 'id' is NULL in a row"):
            driver.write(0, rows(row(1), {"id": None, "seq": 1, "text": "a", "gone": gone}))
    driver = place.driver(write_mode="delete", key_columns=["id", "part"])
    with pytest.raises(ValueRefusedError, match="the key column 'part' is NULL in a row"):
        driver.write(0, batch(id=[1], part=pa.array([None], pa.string())))
    assert place.commits == 0


def test_all_rows_of_another_writer_with_a_key_change_together(place: Place) -> None:
    place.make(COLUMNS, "part")
    for part in "ab":
        place.append(rows(row(1, 5, part), row(2, 5, part)).drop_columns(["gone"]))
    driver = upserting(place)
    driver.write(0, rows(row(1, 6, "c", text="new"), row(2, 6, "c", gone=True)))
    assert [(each["id"], each["part"], each["text"]) for each in place.rows()] == [(1, "c", "new")] * 2


def test_update_columns_leave_the_others_of_an_existing_row(place: Place) -> None:
    place.make(COLUMNS)
    driver = upserting(place, update_columns="text")
    driver.write(0, rows(row(1, 1, "a", text="first"), row(2, 1, "a")))
    driver.write(1, rows(row(1, 2, "b", text="second"), row(2, 2, gone=True), row(2, 3, "c", text="again")))
    assert [(each["part"], each["seq"], each["text"]) for each in place.rows()] == [
        ("a", 2, "second"),
        ("c", 3, "again"),
    ]


def test_columns_that_the_rows_lack_stay_when_a_row_is_updated_and_are_null_in_a_new_one(place: Place) -> None:
    place.make(COLUMNS | {"more": "string"})
    place.append(batch(id=[1], part=["a"], seq=[1], text=["x"], more=["kept"]))
    upserting(place).write(0, rows(row(1, 2), row(2, 2)))
    assert [each["more"] for each in place.rows()] == ["kept", None]


def test_names_in_another_case_and_with_quotes_find_their_columns(place: Place) -> None:
    odd = 'the "Key" of `x`.y'
    place.make({odd: "long", "SEQ": "long", "Text": "string"})
    driver = place.driver(write_mode="upsert", key_columns=[odd.lower()], order_column="seq", delete_marker="GONE")

    def some(key: int, seq: int, text: str, gone: bool = False) -> pa.RecordBatch:
        return batch(**{odd: [key], "seq": [seq], "text": [text], "gone": [gone]})

    driver.write(0, some(1, 1, "a"), some(2, 1, "b"))
    driver.write(1, some(1, 2, "c"), some(2, 2, "d", gone=True))
    assert [each["Text"] for each in place.rows()] == ["c"]


KEYS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("byte", pa.int8(), [-1, 1, 2]),
    ("string", pa.string(), ["", "a b/ü%", "x" * 200]),
    ("binary", pa.binary(), [b"", b"\x00\xff", b"a"]),
    ("boolean", pa.bool_(), [True, False]),
    ("decimal(38,2)", pa.decimal128(38, 2), [Decimal("123456789012345678.91"), Decimal("123456789012345678.92")]),
    ("date", pa.date32(), [date(1, 1, 1), date(2020, 2, 29), date(9999, 12, 31)]),
    ("timestamp", pa.timestamp("us", "UTC"), [datetime(1900, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 0, 1, UTC)]),
]


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [each if each[0] in ("string", "decimal(38,2)", "timestamp") else thorough(*each) for each in KEYS],
    ids=[kind for kind, *_ in KEYS],
)
@pytest.mark.parametrize("partitioned", [False, thorough(True)], ids=["in_files", "partition"])
def test_keys_of_each_type_are_found(
    place: Place, kind: str, arrow: pa.DataType, values: list[Any], partitioned: bool
) -> None:
    if partitioned and kind == "binary":
        pytest.skip("no table is partitioned by binary columns")
    values = [value for value in values if not (partitioned and value == "")]
    place.make({"k": kind, "v": "string"}, *(["k"] if partitioned else []))
    driver = place.driver(write_mode="upsert", key_columns="k", delete_marker="gone")
    for epoch, gone in enumerate([False, False, True]):
        keys = pa.array(values if not gone else values[1:], arrow)
        driver.write(epoch, batch(k=keys, v=[f"e{epoch}"] * len(keys), gone=[gone] * len(keys)))
        wanted = [(value, f"e{epoch}") for value in values] if not gone else [(values[0], "e1")]
        assert sorted(((each["k"], each["v"]) for each in place.rows()), key=repr) == sorted(wanted, key=repr)


def test_columns_are_added_also_while_an_epoch_is_recorded(place: Place) -> None:
    place.make(COLUMNS)
    upserting(place, "log").write(0, rows(row(1), row(2)))
    more = rows(row(1, 2), row(3)).append_column("more", pa.array(["m1", "m3"]))
    with crash_at("table: committing"):
        upserting(place, "log", schema_evolution="add_columns").write(1, more)
    place.add_column("theirs")
    upserting(place, "log", schema_evolution="add_columns").write(1, more)
    assert [(each["id"], each["seq"], each["more"], each["theirs"]) for each in place.rows()] == [
        (1, 2, "m1", None), (2, 1, None, None), (3, 1, "m3", None),
    ]  # fmt: skip


def test_a_missing_table_is_created_and_overwrite_replaces_all_rows(place: Place) -> None:
    upserting(place, create_table="if_missing", partition_by="part").write(0, rows(row(1), row(2)))
    upserting(place, on_existing="overwrite").write(0, rows(row(2, 0), row(2, 1, text="x"), row(3, gone=True)))
    assert [(each["id"], each["text"]) for each in place.rows()] == [(2, "x")]
    upserting(place, on_existing="overwrite").write(0)
    assert place.rows() == []


def test_only_files_that_change_are_rewritten(place: Place) -> None:
    place.make(COLUMNS, "part")
    driver = upserting(place, key_columns=["id", "part"])
    driver.write(0, rows(*(row(number, 5, part) for number in range(10) for part in "abc")))
    before = place.live
    result = driver.write(1, rows(row(3, 6, "b"), row(4, 1, "c"), row(99, 1, "c", gone=True)))
    assert len(before & place.live) == 2
    assert {name: result.counts[name] for name in ("rows_changed", "rows_updated", "files_replaced")} == {
        "rows_changed": 1, "rows_updated": 1, "files_replaced": 1,
    }  # fmt: skip
    after = place.live
    driver.write(2, rows(row(4, 1, "c")))
    assert place.live == after


def test_bounds_of_keys_keep_files_from_being_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make(COLUMNS)
    for begin in (0, 100, 200):
        place.append(rows(*(row(begin + number) for number in range(10))).drop_columns(["gone"]))
    read: list[str] = []
    batches = StoredRows.batches

    def watched(self: Any, names: Sequence[str]) -> Any:
        read.append(self.path)
        return batches(self, names)

    monkeypatch.setattr(StoredRows, "batches", watched)
    upserting(place).write(0, rows(row(105, 2), row(150, 2)))
    assert len(set(read)) == 1
    assert len(place.rows()) == 31


@pytest.mark.parametrize("options", [UPSERT, {"write_mode": "delete", "key_columns": "id"}], ids=["upsert", "delete"])
def test_a_writer_between_load_and_commit_is_gone_on_from(
    place: Place, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make(COLUMNS)
    place.append(rows(row(1, 1), row(2, 1)).drop_columns(["gone"]))
    run, others = merging.Merge.run, [rows(row(1, 1), row(70)).drop_columns(["gone"])]

    def overtaken(self: Any, files: Any) -> None:
        run(self, files)
        if others:
            place.append(others.pop())

    monkeypatch.setattr(merging.Merge, "run", overtaken)
    place.driver(**options).write(0, rows(row(1, 2, text="ours")))
    ones = [each["text"] for each in place.rows() if each["id"] == 1]
    assert ones == (["ours", "ours"] if options is UPSERT else [])
    assert [number for number in place.rows("id") if number != 1] == [2, 70]
    assert place.left_over() == set()


STEPS = ["table: committing", "table: merging", "table: merged", "table: committed", "table: clearing"]


@pytest.mark.parametrize("step", [thorough(step) if step != "table: merged" else step for step in STEPS])
def test_a_driver_that_dies_at_a_step_leaves_one_that_merges_the_epoch_once(place: Place, step: str) -> None:
    place.make(COLUMNS, "part")
    upserting(place, "log").write(0, rows(row(1, 1), row(2, 1, "b")))
    given = rows(row(1, 2, "b", text="new"), row(2, 2, gone=True), row(3))
    with crash_at(step):
        upserting(place, "log").write(1, given)
    upserting(place, "log").write(1, given)
    assert [(each["id"], each["part"], each["text"]) for each in place.rows()] == [(1, "b", "new"), (3, "a", "t3")]
    upserting(place, "log").write(2, rows(row(9)))
    assert place.left_over() == set()
    assert place.commits == 3


def test_staged_files_that_were_removed_as_orphans_have_the_epoch_written_anew(place: Place) -> None:
    place.make(COLUMNS)
    driver = upserting(place)
    driver.write(0, rows(row(1)))

    with pytest.raises(EpochAbandonedError, match="are missing"):
        driver.write(1, rows(row(2)), between=place.remove_orphans)
    driver.write(1, rows(row(2)))
    assert place.rows("id") == [1, 2]


# --- refusals


@pytest.mark.parametrize(
    ("options", "given", "match"),
    [
        ({"key_columns": "no"}, {}, "requires the column 'no'"),
        ({"update_columns": "no"}, {}, "requires the column 'no'"),
        ({"delete_marker": "text", "order_column": "seq"}, {}, "'text' is not a boolean column"),
        ({"key_columns": "x"}, {"x": pa.array([1.0])}, "olumn 'x' of type double cannot be in key_columns"),
        ({"key_columns": "s"}, {"s": pa.array([{"a": 1}])}, "cannot be in key_columns"),
        ({"order_column": "x"}, {"x": pa.array([1.0])}, "olumn 'x' of type double cannot be order_column"),
        ({}, {"unknown": pa.array([1])}, "nknown is not in the table"),
    ],
    ids=["key", "update_column", "marker", "double_key", "struct_key", "double_order", "unknown_column"],
)
def test_rows_whose_keys_cannot_be_compared_are_refused_before_the_first(
    place: Place, options: dict[str, Any], given: dict[str, Any], match: str
) -> None:
    place.make(COLUMNS | {"x": "double", "s": {"type": "struct", "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {}}]}})  # fmt: skip
    some = rows(row(1))
    for name, values in given.items():
        some = some.append_column(name, values)
    with pytest.raises(ConfigurationError, match=match):
        upserting(place, **options).write(0, some)
    assert place.commits == 0


def test_an_epoch_beyond_the_limit_waits_until_it_is_raised(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.make(COLUMNS)
    many = rows(*(row(number, text="x" * 500) for number in range(3000)))
    with pytest.raises(ConfigurationError, match="raise max_merge_bytes"):
        upserting(place, "log", max_merge_bytes="1 MiB").write(0, many)
    assert place.commits == 0
    with caplog.at_level(logging.WARNING, "outfall.tables.merge"):
        upserting(place, "log", max_merge_bytes="3 MiB").write(0, many)
    assert "more than half of max_merge_bytes (3 MiB)" in caplog.text
    assert len(place.rows()) == 3000
