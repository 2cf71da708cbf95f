"""One change per key comes to the same as the rows of an epoch, had each arrived alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.tables.changes import Changes, Keys, changes_of

SCHEMA = pa.schema([("k", pa.int64()), ("l", pa.string()), ("o", pa.int64()), ("v", pa.string()), ("w", pa.string())])

Row = dict[str, Any]


class Rows:
    """The rows of an epoch, in batches."""

    def __init__(self, rows: Sequence[Row], size: int = 3, schema: pa.Schema = SCHEMA) -> None:
        whole = schema.append(pa.field("gone", pa.bool_()))
        batches = [rows[at : at + size] for at in range(0, len(rows), size)]
        self.batches = [pa.RecordBatch.from_pylist(batch, schema=whole) for batch in batches]
        self.spent = 0

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from (batch.select(list(names)) for batch in self.batches)

    def spend(self, size: int) -> None:
        self.spent += size

    def changes(self, keys: Keys, schema: pa.Schema = SCHEMA) -> Changes:
        return changes_of(self.read, schema, keys, self.spend)


def arrive_alone(table: list[Row], row: Row, keys: Keys) -> list[Row]:
    """What the table is after one more row."""

    def newer(theirs: Row) -> bool:
        if keys.order is None or theirs[keys.order] is None:
            return False
        return row[keys.order] is None or theirs[keys.order] > row[keys.order]

    def same(theirs: Row) -> bool:
        return all(row[key] is not None and theirs[key] == row[key] for key in keys.names)

    if row["gone"] or keys.all_gone:
        return [each for each in table if not same(each) or newer(each)]
    news = {name: row[name] for name in SCHEMA.names if keys.updated is None or name in keys.updated}
    if not any(map(same, table)):
        return [*table, {name: row[name] for name in SCHEMA.names}]
    return [{**each, **news} if same(each) and not newer(each) else each for each in table]


def apply(table: list[Row], changes: Changes, keys: Keys) -> list[Row]:
    """Apply changes to a table, row by row."""
    for number in range(len(changes)):
        last, first = changes.last.slice(number, 1).to_pylist()[0], changes.first.slice(number, 1).to_pylist()[0]
        if changes.removes[number]:
            order = None if changes.removal_order is None else changes.removal_order[number].as_py()
            table = arrive_alone(table, {**last, "gone": True} | ({keys.order: order} if keys.order else {}), keys)
        if not changes.deleted[number]:
            there = len(table)
            after = arrive_alone(table, {**last, "gone": False}, keys)
            table = [*table, first] if len(after) > there else after
    return table


ORDERED = Keys(("k", "l"), order="o", marker="gone")


@pytest.mark.parametrize(
    "keys",
    [
        ORDERED,
        Keys(("k", "l"), marker="gone"),
        Keys(("k", "l"), order="o"),
        Keys(("k",)),
        Keys(("k", "l"), order="o", marker="gone", updated=frozenset({"v", "o"})),
        Keys(("k", "l"), marker="gone", updated=frozenset({"v"})),
        Keys(("k", "l"), all_gone=True),
    ],
    # Not their text: the order of a set differs between the processes that run tests.
    ids=["all", "marker", "order", "one key", "some columns and order", "some columns", "deletes"],
)
@pytest.mark.parametrize("seed", range(8))
def test_changes_come_to_what_the_rows_come_to_one_by_one(keys: Keys, seed: int) -> None:
    chance = random.Random(seed)

    def row(number: int) -> Row:
        order = chance.choice([None, 1, 2, 3, 4])
        deleted = keys.marker is not None and chance.random() < 0.3
        return {"k": chance.randint(1, 4), "l": chance.choice("ab"), "o": order, "v": f"v{number}", "w": f"w{number}",
                "gone": deleted or None}  # fmt: skip

    table = [{**row(-1), "k": k, "l": l} for k in range(1, 4) for l in "ab"]  # noqa: E741
    table = [{name: each[name] for name in SCHEMA.names} for each in table]
    rows = [row(number) for number in range(40)]
    found = apply(table, Rows(rows).changes(keys), keys)
    in_time = rows if keys.order is None else sorted(rows, key=lambda each: (each["o"] is not None, each["o"] or 0))
    wanted = table
    for each in in_time:
        wanted = arrive_alone(wanted, each, keys)
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_null_is_one_key_within_an_epoch() -> None:
    rows: list[Row] = [{"k": None, "l": "a", "v": "1"}, {"k": 1, "l": None, "v": "2"}, {"k": None, "l": "a", "v": "3"}]
    changes = Rows(rows).changes(Keys(("k", "l")))
    assert sorted(changes.last.column("v").to_pylist()) == ["2", "3"]


def test_an_epoch_of_one_row_and_of_none() -> None:
    assert len(Rows([]).changes(ORDERED)) == 0
    (row,) = Rows([{"k": 1, "l": "a", "o": 5, "v": "x"}]).changes(ORDERED).last.to_pylist()
    assert (row["k"], row["v"]) == (1, "x")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-3, 2]),
        (pa.decimal128(38, 2), [Decimal("99999999999999999999.98"), Decimal("99999999999999999999.99")]),
        (pa.date32(), [date(1, 1, 1), date(2020, 1, 1)]),
        (pa.timestamp("us", "UTC"), [datetime(2020, 1, 1, 0, 0, 0, 1, UTC), datetime(2020, 1, 1, 0, 0, 0, 2, UTC)]),
        (pa.timestamp("us"), [datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("9999-01-01")]),
        (pa.string(), ["B", "a"]),
    ],
    ids=str,
)
def test_the_greater_value_of_each_type_wins(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", kind), ("o", kind), ("v", pa.string())])
    low, high = values
    rows: list[Row] = [
        {"k": low, "o": high, "v": "last"},
        {"k": low, "o": low, "v": "first"},
        {"k": high, "o": None, "v": "other"},
    ]
    changes = Rows(rows, schema=schema).changes(Keys(("k",), order="o"), schema)
    assert sorted(changes.last.column("v").to_pylist()) == ["last", "other"]


def test_memory_is_counted_for_keys_of_all_rows_and_whole_rows_of_those_that_win() -> None:
    many = Rows([{"k": 1, "l": "a", "o": number, "v": "x" * 1000} for number in range(100)])
    many.changes(ORDERED)
    assert 100 * 24 < many.spent < 100 * 60 + 3000
