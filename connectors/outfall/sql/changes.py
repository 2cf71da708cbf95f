"""The write mode `changes`: which rows are changes, how they are ordered, and those that nothing orders.

A row is a change: an operation, a key and a sequence. The change with the greatest sequence of a key wins, in whatever
order and in whatever epochs they arrive. The table stores the sequence of each row, and `tombstones` those of deleted
keys, so an older change never replaces a newer one and never brings a deleted row back.

The words for operations are those of Debezium (documentation, "Data change events": c, r, u, d, t), and those that
other sources spell out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.delivery_order import PER_GENERATION
from outfall.errors import ValueRefusedError
from outfall.formats.types import is_bytes
from outfall.sql.options import SqlOptions
from outfall.unavailable import UNAVAILABLE, UNAVAILABLE_NUMBERS, UNAVAILABLE_UUID
from outfall.values import spark_type, without_values

WRITES = ("c", "r", "u", "i", "insert", "update", "upsert")
"""The operations that write a row, in lower case."""

_INSERTS = ("c", "i", "insert")

REMOVALS = ("d", "delete")
"""The operations that remove a row, in lower case."""

_TRUNCATIONS = ("t", "truncate")

KEPT = "\x1f"
"""Follows an operation in staging that keeps values, and each name of their columns, such as `u, note,` with this in
place of the commas. A dead letter has it too, so that its replay keeps them."""


@dataclass(frozen=True)
class Problem:
    """Why a row cannot be applied as a change, and the remedy."""

    reason: str
    do: str
    afterwards: str = ""
    """What to do about the row once it is a dead letter, if anything."""

    @property
    def of_letter(self) -> str:
        """The reason that a dead letter has."""
        return f"{self.reason}: {self.afterwards}" if self.afterwards else self.reason


_NO_OPERATION = Problem(
    "its operation is NULL", "leave such rows out with a filter, for example the Kafka records without a value"
)
_TRUNCATION = Problem(
    "it is a truncation, which has no key",
    "leave truncations out with a filter, and afterwards delete the rows of the table whose sequence is smaller than"
    " that of the truncation",
)
_UNKNOWN = Problem(
    f"its operation is none of {', '.join([*WRITES, *REMOVALS])}",
    "translate the operation in the query, or leave the row out with a filter",
)
_TIED = Problem(
    "another change of its key has the same sequence and different values",
    "set sequence_column to a column in which no two changes of a key are equal, such as the position in the source's"
    " log; or set dead_letter_table, which stores both changes",
)


MOVED = Problem(
    "a newer change of its key came from another partition of the topic, and nothing orders the two",
    "if partitions were added, pass order=… to changes with a generation 1 greater and the new number of partitions,"
    " and have the connector take an incremental snapshot, whose rows are newer; if the query fails at this epoch"
    " again, set dead_letter_table, whose rows are then only a record",
)
_NOT_KAFKAS = Problem(
    "its sequence is none of outfall.spark.debezium.changes",
    "make the rows with this function, or leave out sequence_kind",
)

KAFKA_SEQUENCE = pa.decimal128(38, 0)
"""The type of the sequences of `outfall.spark.debezium.changes`."""

_ONCE_MORE = (
    "have the source send the row once more, for example by an incremental snapshot of this key by Debezium; in"
    " PostgreSQL, ALTER TABLE … REPLICA IDENTITY FULL makes it send all values from then on"
)
_KEEP = f"set dead_letter_table, which keeps such changes, so that the query goes on; then {_ONCE_MORE}"

UNKNOWN = Problem(
    "a value that the update did not change is neither in the table nor in an older change of this epoch",
    _KEEP,
    _ONCE_MORE,
)

KEY_CHANGED = Problem(
    "the key of its row was changed, and its source did not send a value that was left as it was, which nothing has"
    " under the new key",
    _KEEP,
    _ONCE_MORE,
)


def is_creation(operation: str) -> bool:
    """Return whether an operation in staging inserts a row, so that a value can be missing only if its key changed.

    Debezium sends the new key as an insert, and the old one as a delete.
    """
    return operation.partition(KEPT)[0].lower() in _INSERTS


def tied(options: SqlOptions) -> Problem:
    """Return the problem of different changes with one key and one sequence."""
    return _TIED if options.dead_letter_table is None else Problem(_TIED.reason, _TIED.do.partition(";")[0])


class ChangeCheck:
    """Finds the rows of batches that cannot be applied as changes."""

    def __init__(self, options: SqlOptions) -> None:
        self._operation = options.operation_column or ""
        self._sequence = options.sequence_column or ""
        self._keys = options.key_columns
        self._of_kafka = options.sequence_kind == "kafka"

    def problems(self, batch: pa.RecordBatch) -> Mapping[int, Problem]:
        """Return the rows that cannot be applied, in their order, each with its first problem.

        Raises `ValueRefusedError` if the batch lacks a column that an option names.
        """
        for name in (self._operation, self._sequence, *self._keys):
            if name not in batch.schema.names:
                raise ValueRefusedError(
                    f"the rows have no column {name!r}, which an option names",
                    do="add the column, or correct the option",
                )
        found: dict[int, Problem] = {}
        for mask, problem in self._rules(batch):
            if pc.any(mask).as_py():
                for row in pc.indices_nonzero(mask).to_pylist():
                    found.setdefault(row, problem)
        return dict(sorted(found.items()))

    def _rules(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, Problem]]:
        # A batch of rows from Python may have no operation at all.
        operation = batch.column(self._operation)
        operation = operation.cast(pa.string()) if pa.types.is_null(operation.type) else operation
        operation = pc.utf8_lower(pc.replace_substring_regex(operation, f"(?s){KEPT}.*", ""))
        written = _among(operation, WRITES)
        yield pc.is_null(operation), _NO_OPERATION
        yield _among(operation, _TRUNCATIONS), _TRUNCATION
        yield pc.invert(pc.or_(written, _among(operation, REMOVALS))), _UNKNOWN
        for name in self._keys:
            do = "correct the row at its source, or leave it out with a filter"
            yield pc.is_null(batch.column(name)), Problem(f"its key column {name!r} is NULL", do)
        yield (
            pc.is_null(batch.column(self._sequence)),
            Problem(
                f"its sequence, in column {self._sequence!r}, is NULL",
                "give each change a sequence; rows of a snapshot, which are older than all changes, get one below all"
                f" others in the query, such as coalesce({self._sequence}, 0)",
            ),
        )
        if self._of_kafka:
            least = pa.scalar(Decimal(PER_GENERATION), KAFKA_SEQUENCE)
            yield pc.fill_null(pc.less(batch.column(self._sequence), least), False), _NOT_KAFKAS
        for name in (*self._keys, self._sequence):
            mask = _is_unavailable(batch.column(name))
            if mask is not None:
                yield (
                    pc.and_(written, pc.fill_null(mask, False)),
                    Problem(
                        f"its column {name!r} holds {UNAVAILABLE}, and not the value",
                        "have the source send all values (in PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL)",
                    ),
                )


def keeping(batch: pa.RecordBatch, options: SqlOptions) -> pa.RecordBatch:
    """Return a batch in which each value that its source does not have is NULL, and the operation says to keep it."""
    operation = batch.column(options.operation_column or "")
    not_values = {options.operation_column, options.sequence_column, *options.key_columns}
    arrays, names, gone = batch.columns, None, removals(operation)
    for place, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        mask = None if name in not_values else _is_unavailable(column)
        if mask is None or not pc.any(mask := pc.and_not(pc.fill_null(mask, False), gone)).as_py():
            continue
        arrays[place] = pc.if_else(mask, pa.scalar(None, column.type), column)
        marks = pc.if_else(mask, f"{name}{KEPT}", "")
        names = marks if names is None else pc.binary_join_element_wise(names, marks, "")
    if names is None:
        return batch
    marked = pc.binary_join_element_wise(operation.cast(pa.string()), KEPT, names, "")
    arrays[batch.schema.names.index(options.operation_column)] = pc.if_else(
        pc.equal(names, ""), operation, marked.cast(operation.type)
    )
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def keeps(operation: pa.Array, name: str) -> pa.Array:
    """Return which operations, as `keeping` returns them, keep the value of a column."""
    return pc.match_substring(operation, f"{KEPT}{name}{KEPT}")


def only_keys_of_removals(batch: pa.RecordBatch, options: SqlOptions, required: Sequence[str]) -> pa.RecordBatch:
    """Return a batch in which removals have only keys, sequence, operation and the `required` columns.

    Nothing else of them is used.
    """
    if not batch.num_rows:
        return batch
    if options.write_mode == "delete":
        gone = pa.repeat(pa.scalar(True), batch.num_rows)
    elif options.operation_column is not None:
        gone = removals(batch.column(options.operation_column))
    elif options.delete_marker is not None:
        # A marker without any value has no type.
        gone = pc.fill_null(batch.column(options.delete_marker).cast(pa.bool_()), False)
    else:
        return batch
    ordered = [] if options.ordered_by is None else [options.ordered_by]
    return without_values(batch, gone, [*options.key_columns, *ordered, *options.not_stored, *required])


def removals(operation: pa.Array) -> pa.Array:
    """Return which operations remove a row. They are among those that are known."""
    return _among(pc.utf8_lower(operation), REMOVALS)


def why_no_operation(field: pa.Field) -> list[str]:
    """Return why a column cannot hold operations; nothing if it can."""
    if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
        return []
    return [f"the operation column {field.name!r} is {spark_type(field.type)}, but must be a string"]


def why_no_sequence(kind: pa.DataType) -> str | None:
    """Return why values of a type cannot be the sequence of changes, with the remedy; `None` if they can."""
    of = pa.types
    ordered = (of.is_integer, of.is_decimal, of.is_date, of.is_timestamp, of.is_string, of.is_large_string, is_bytes)
    if any(is_one(kind) for is_one in ordered):
        return None
    why = "NaN cannot be ordered" if of.is_floating(kind) else "its values have no useful order"
    return (
        f"{spark_type(kind)} cannot be a sequence, because {why}: use an integer, a decimal, a date, a timestamp, a"
        " string or binary"
    )


def _among(operation: Any, words: Sequence[str]) -> Any:
    return pc.is_in(operation, value_set=pa.array(words, operation.type))


def _is_unavailable(column: pa.Array) -> Any:
    """Return which values stand for unavailable ones; `None` if the type cannot hold such a value."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        masks = [_are(column, pa.array(value, kind.value_type)) for value in _unavailable_lists(kind.value_type)]
        return functools.reduce(pc.or_, masks) if masks else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.equal(column, pa.scalar(UNAVAILABLE, kind))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.equal(column, pa.scalar(UNAVAILABLE.encode(), kind))
    return None


def _unavailable_lists(kind: pa.DataType) -> list[list[Any]]:
    """Return which arrays stand for unavailable ones."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [[UNAVAILABLE], [UNAVAILABLE_UUID]]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [[UNAVAILABLE.encode()]]
    return [list(UNAVAILABLE_NUMBERS)] if pa.types.is_integer(kind) else []


def _are(column: pa.Array, wanted: pa.Array) -> pa.Array:
    """Return which lists of a column have the wanted values."""
    mask = pc.fill_null(pc.equal(pc.list_value_length(column), len(wanted)), False)
    for place in range(len(wanted)):
        candidates = column.filter(mask)
        if not len(candidates):
            break
        same = pc.fill_null(pc.equal(pc.list_element(candidates, place), wanted[place]), False)
        mask = pc.replace_with_mask(mask, mask, same)
    return mask
