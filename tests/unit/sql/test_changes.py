"""Which rows are changes, without a server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ValueRefusedError
from outfall.postgres.connection.database import PostgresDatabase
from outfall.postgres.dialect import PostgresDialect
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.sql.changes import KEPT, ChangeCheck, keeping, why_no_sequence
from outfall.sql.table import Table

OPTIONS = PostgresOptions.model_validate(
    {"dsn": "host=db", "table": "t", "write_mode": "changes", "key_columns": ["a", "b"]}
    | {"operation_column": "op", "sequence_column": "lsn"}
)
NO_CHANGES = {"operation_column": None, "sequence_column": None}
FINE = {"op": "c", "a": 1, "b": "x", "lsn": 1, "text": "y", "data": b"z"}


def problems(*rows: dict[str, Any], large: bool = False) -> dict[int, str]:
    batch = pa.RecordBatch.from_pylist([FINE, *(FINE | row for row in rows)])
    if large:
        kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        batch = batch.cast(pa.schema([(field.name, kinds.get(field.type, field.type)) for field in batch.schema]))
    return {row - 1: problem.reason for row, problem in ChangeCheck(OPTIONS).problems(batch).items()}


def test_operations_are_known_in_upper_and_lower_case() -> None:
    words = ["c", "r", "u", "i", "d", "insert", "update", "upsert", "delete", "I", "U", "D", "INSERT", "Delete"]
    assert problems(*({"op": word} for word in words)) == {}
    unknown = ["", " c", "m", "+I", "update_preimage", "deletes"]
    assert list(problems(*({"op": word} for word in unknown))) == list(range(len(unknown)))


@pytest.mark.parametrize("large", [False, True])
def test_each_row_has_its_first_problem(large: bool) -> None:
    placeholder = "__debezium_unavailable_value"
    given: list[dict[str, Any]] = [
        {"op": None, "lsn": None}, {"op": "T", "a": None}, {"a": None}, {"b": None}, {"op": "d", "lsn": None},
        {"op": "d", "text": placeholder}, {"text": placeholder}, {"data": placeholder.encode()},
        {"text": f"{placeholder}s"}, {"text": None, "data": None}, {"op": f"U{KEPT}text{KEPT}", "text": None},
    ]  # fmt: skip
    found = problems(*given, large=large)
    assert [found.get(row, "") for row in range(len(given))] == [
        "its operation is NULL", "it is a truncation, which has no key", "its key column 'a' is NULL",
        "its key column 'b' is NULL", "its sequence, in column 'lsn', is NULL", "",
        "", "", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize("large", [False, True])
def test_values_that_are_not_there_become_null_and_the_operation_names_them(large: bool) -> None:
    text, data = "__debezium_unavailable_value", b"__debezium_unavailable_value"
    rows = [
        FINE,
        FINE | {"op": "U", "text": text},
        FINE | {"text": text, "data": data},
        FINE | {"op": "d", "data": data},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    if large:
        batch = batch.set_column(4, "text", batch.column(4).cast(pa.large_string()))
    found = keeping(batch, OPTIONS).to_pylist()
    assert [row["op"] for row in found] == ["c", f"U{KEPT}text{KEPT}", f"c{KEPT}text{KEPT}data{KEPT}", "d"]
    assert [(row["text"], row["data"]) for row in found] == [("y", b"z"), (None, b"z"), (None, None), ("y", data)]
    assert keeping(batch.slice(0, 1), OPTIONS).equals(batch.slice(0, 1))


@pytest.mark.parametrize(
    ("kind", "value", "others"),
    [
        (pa.string(), ["__debezium_unavailable_value"], [["a"], [None], ["__debezium_unavailable_value", "a"], []]),
        (pa.large_string(), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], [["c7672e60"]]),
        (pa.binary(), [b"__debezium_unavailable_value"], [[b"a"]]),
        (pa.int32(), list(b"__debezium_unavailable_value"), [[95], [95] * 28, [None] * 28]),
        (pa.int64(), list(b"__debezium_unavailable_value"), [[95]]),
    ],
    ids=str,
)
def test_an_array_that_an_update_does_not_change_is_kept(
    kind: pa.DataType, value: list[Any], others: list[Any]
) -> None:
    values = [value, *others, None, value]
    rows = [FINE | {"op": "u", "text": each} for each in values]
    schema = pa.RecordBatch.from_pylist([FINE]).schema
    batch = pa.RecordBatch.from_pylist(rows, schema.set(4, pa.field("text", pa.list_(kind))))
    found = keeping(batch, OPTIONS).to_pylist()
    assert [row["text"] for row in found] == [None, *others, None, None]
    kept = f"u{KEPT}text{KEPT}"
    assert [row["op"] for row in found] == [kept, *["u"] * (len(others) + 1), kept]


def test_a_key_or_a_sequence_that_is_not_there_is_a_problem() -> None:
    assert "its column 'b' holds" in problems({"b": "__debezium_unavailable_value"})[0]


class NewTable(PostgresDialect):
    """A server that has no table yet."""

    def columns(self, session: Any, name: Any) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("kind", "options", "warned"),
    [
        (pa.int64(), {}, True),
        (pa.decimal128(38, 0), {}, False),
        (pa.int64(), {"sequence_column": "a_lsn"}, False),
        (pa.int64(), {"write_mode": "upsert", "order_column": "LSN"} | NO_CHANGES, True),
    ],
)
def test_a_position_in_a_log_is_warned_of_as_an_order(
    kind: pa.DataType, options: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = OPTIONS.model_dump(exclude_defaults=True) | {"create_table": "if_missing", **options}
    found = PostgresOptions.model_validate({name: value for name, value in given.items() if value is not None})
    schema = pa.schema([("op", pa.string()), ("a", pa.int64()), ("b", pa.string()), (found.ordered_by, kind)])
    database = PostgresDatabase(found)
    session: Any = None
    Table(NewTable(found, database), TableName(None, "t")).check(session, schema)
    assert ["source.lsn" in record.getMessage() for record in caplog.records] == [True] * warned


def test_a_batch_without_a_column_of_an_option_is_refused() -> None:
    for name in ("op", "lsn", "a", "b"):
        batch = pa.RecordBatch.from_pylist([{key: value for key, value in FINE.items() if key != name}])
        with pytest.raises(ValueRefusedError, match=f"no column '{name}'"):
            ChangeCheck(OPTIONS).problems(batch)
    empty = pa.RecordBatch.from_pylist([FINE | {"op": None}])
    assert list(ChangeCheck(OPTIONS).problems(empty)) == [0]


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (pa.int8(), True), (pa.decimal128(38, 0), True), (pa.date32(), True), (pa.timestamp("us"), True),
        (pa.large_string(), True), (pa.binary(), True), (pa.float32(), False), (pa.bool_(), False),
        (pa.list_(pa.int64()), False), (pa.time64("us"), False), (pa.null(), False),
    ],
    ids=str,
)  # fmt: skip
def test_types_without_one_order_are_no_sequences(kind: pa.DataType, fits: bool) -> None:
    assert (why_no_sequence(kind) is None) == fits
