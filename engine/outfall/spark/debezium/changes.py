"""Records of a topic as changes of one table, by expressions of Spark: no row passes through Python before the sink.

```
record ──> event ──> operation, row ──> columns of the table ──> operation, sequence, columns
               events                     values                       order
```
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from outfall.errors import ConfigurationError
from outfall.options import in_own_case
from outfall.spark.debezium.captured import CapturedTable
from outfall.spark.debezium.events import EVENT, Envelopes, Events, FlatEvents, literal, quoted
from outfall.spark.debezium.order import DeliveryOrder, ReadTopics, found
from outfall.spark.debezium.tables import ReadTables, columns_of, tables_of
from outfall.spark.debezium.values import Times, check_times, check_types, converted, is_unavailable, unit_of, why_not
from outfall.values import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

Form = Literal["envelope", "flat"]
OnTruncate = Literal["fail", "ignore"]
OnUnavailable = Literal["keep", "fail"]
OnError = Literal["fail", "null"]
T = TypeVar("T", bound=str)

_PLACE = ("topic", "partition", "offset")
_RECORD = ("key", *_PLACE)
_OWN = "_outfall_{}".format
_TEXT, _OPERATION, _ROW, _REASON, _NUMBER = map(_OWN, ("text", "operation", "row", "reason", "value_{}"))
_TABLE = _OWN("table")


def changes(
    records: DataFrame,
    columns: str | StructType | Mapping[str, str | StructType | CapturedTable],
    *,
    order: int | Mapping[str, int] | DeliveryOrder,
    table: str | None = None,
    form: Form = "envelope",
    times: Times = None,
    on_truncate: OnTruncate = "fail",
    on_unavailable: OnUnavailable = "keep",
    on_error: OnError = "fail",
    operation_column: str = "op",
    sequence_column: str = "seq",
    table_column: str = "table",
) -> DataFrame:
    """Return the changes of a table that a topic of Debezium's has: its columns, the operation and the sequence.

    Or those of several tables, from the topics of a connector: the columns of all, and the name of the table.

    For streams and batch jobs, classic sessions and Spark Connect. A sink with `write_mode="changes"` applies them, in
    whatever order they arrive. Left out are tombstones, heartbeats, transaction metadata, logical messages and changes
    of the schema.

    Args:
        records: The records of one topic, or of the topics of several tables, as Spark's Kafka source has them: `key`,
            `value`, `topic`, `partition` and `offset`. `value` is JSON, binary or a string, with or without its schema,
            or with one table a struct, which `outfall.spark.deserialize` makes of messages with schemas of a registry.
        columns: The columns of the table with Spark's types, such as `"id BIGINT, city STRING"`. Other fields of the
            events are left out. Or several tables by name, as `{"public.orders": "id BIGINT, city STRING"}`, or as
            `captured_tables` returns them: their rows have NULL in the columns of others, and the change of another
            table is an error. A name is as in the source, and may be quoted as the sink needs it, such as
            `public."Order Items"`.
        order: The generation of the topic: 1, and 1 more after it was created again or got more partitions. One for
            all topics, or one for each by its name. Or an object that asks the brokers:
            `outfall.kafka.TopicGeneration`, or `TopicGenerations` for the topics of several tables.
        table: The table, as `schema.table`, in MySQL `database.table`, or its name alone. Changes of others are left
            out. Without it, the change of a table that the topic is not named after is an error.
        form: `envelope`, or `flat` for events of `ExtractNewRecordState` with `add.fields=op,schema,table`, in MySQL
            `op,db,table`, and `delete.tombstone.handling.mode=rewrite`.
        times: The unit of timestamps that are numbers: `millis`, `micros` or `nanos`, for all columns or by column.
            Without it, such a number is an error, unless `captured_tables` knows the unit. Timestamps in ISO's form
            need none.
        on_truncate: What to do with a truncation, which has no order among the changes. `fail`: it is an error.
            `ignore`: it is left out, and the table keeps its rows.
        on_unavailable: What to do with a value that PostgreSQL does not send, since an update did not change it.
            `keep`: it stays Debezium's placeholder, for which `write_mode="changes"` keeps the stored value. `fail`:
            the record is an error, for all other sinks, which would write the placeholder.
        on_error: What to do with a record that is no change. `fail`: fail the query with topic, partition, offset and
            the reason. `null`: NULL as the operation, and the reason in the column `<operation_column>_error`.
        operation_column: The name of the column with the operation: `c`, `r`, `u` or `d`.
        sequence_column: The name of the column with the sequence, a `decimal(38,0)`.
        table_column: With several tables, the name of the column with the table, as `columns` has it.

    Raises:
        ConfigurationError: An argument is wrong, the records lack a column, or the topic is not the expected one.
        OutfallError: The brokers do not respond.
    """
    form = _choice("form", form, ("envelope", "flat"))
    on_truncate = _choice("on_truncate", on_truncate, ("fail", "ignore"))
    on_unavailable = _choice("on_unavailable", on_unavailable, ("keep", "fail"))
    on_error = _choice("on_error", on_error, ("fail", "null"))
    session = records.sparkSession
    several = tables_of(columns, session) if isinstance(columns, Mapping) else None
    wanted = several.columns if several is not None else columns_of(columns, session)
    errors = f"{operation_column}_error"
    more = [*([errors] if on_error == "null" else []), *([] if several is None else [table_column])]
    _check_names(wanted, operation_column, sequence_column, *more)
    check_types(wanted)
    check_times(times, wanted)
    times = several.times if times is None and several is not None else times
    require_columns(records.columns, {name: name for name in (*_RECORD, "value")})
    events = (FlatEvents if form == "flat" else Envelopes)(wanted, records.schema["value"].dataType)
    if several is not None:
        _check_several(events, table)
    topics = found(order)
    topics.check_tables([table] if several is None else several.names)

    given = {name: _value(name, several) for name in wanted.names}
    numbered = {name: _NUMBER.format(number) for number, name in enumerate(wanted.names)}
    of = events.row_types()
    made = [
        f"{converted(given[field.name], of[field.name], field.dataType, unit_of(times, field.name))} AS {number}"
        for field, number in zip(wanted, numbered.values(), strict=True)
    ]
    values = _rows(records, events, table, on_truncate).selectExpr("*", *made)
    why = [*_problems(events, topics, table, several), *_not_converted(wanted, given, numbered)]
    why += [] if events.are_structs else _problems_of_json(events, wanted, given, several)
    why += _not_sent(wanted, numbered) if on_unavailable == "fail" else []
    reasons = " ".join(f"WHEN {condition} THEN {literal(text)}" for condition, text in why)
    judged = values.selectExpr(*_PLACE, _OPERATION, _TABLE, *numbered.values(), f"CASE {reasons} END AS {_REASON}")
    operation = f"CASE WHEN {_REASON} IS NULL THEN {_OPERATION}{_failing() if on_error == 'fail' else ''} END"
    return judged.selectExpr(
        *(f"{number} AS {quoted(name)}" for name, number in numbered.items()),
        f"{operation} AS {quoted(operation_column)}",
        f"{topics.sequence()} AS {quoted(sequence_column)}",
        *([] if several is None else [f"{several.given(_TABLE)} AS {quoted(table_column)}"]),
        *([f"{_REASON} AS {quoted(errors)}"] if on_error == "null" else []),
    )


def _rows(records: DataFrame, events: Events, table: str | None, on_truncate: OnTruncate) -> DataFrame:
    """Return the events that are changes, each with its operation and row.

    In steps, since Spark evaluates an expression again wherever a later one of the same step uses it.
    """
    read = records.where("value IS NOT NULL").selectExpr(
        *_RECORD, f"{events.text()} AS {_TEXT}", f"{events.event()} AS {EVENT}"
    )
    is_change = [f"NOT {events.is_about_others()}", *_of_table(events, table)]
    is_change += [f"coalesce({events.operation()} <> 't', true)"] if on_truncate == "ignore" else []
    # Not by a filter: Spark would move it below, and read each event again for it.
    chosen = f"explode(CASE WHEN {' AND '.join(is_change)} THEN array({EVENT}) ELSE array() END) AS {EVENT}"
    named = f"concat({events.table()[0]}, '.', {events.table()[1]}) AS {_TABLE}"
    known = f"{events.operation()} AS {_OPERATION}", f"{events.row()} AS {_ROW}", named
    return read.selectExpr(*_RECORD, _TEXT, chosen).selectExpr(*_RECORD, _TEXT, EVENT, *known)


def _not_converted(columns: StructType, given: Mapping[str, str], made: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the conditions under which a value is none of its column's type, with reasons and remedies."""
    for field in columns:
        condition = f"{given[field.name]} IS NOT NULL AND {made[field.name]} IS NULL"
        yield condition, why_not(field.name, field.dataType)


def _not_sent(columns: StructType, made: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the conditions under which the source has not sent a value that it writes, with reasons and remedies."""
    remedy = (
        "the value of {} is not in the event, since an update did not change it: in the source, ALTER TABLE … REPLICA"
        " IDENTITY FULL, take an incremental snapshot, and pass on_unavailable='keep' until the query has read that"
    )
    for field in columns:
        condition = is_unavailable(made[field.name], field.dataType)
        if condition is not None:
            yield f"{_OPERATION} <> 'd' AND {condition}", remedy.format(field.name)


def _value(name: str, several: ReadTables | None) -> str:
    """Return the value of a column in the event."""
    value, has = f"{_ROW}.{quoted(name)}", None if several is None else several.has(_TABLE, name)
    return value if has is None else f"CASE WHEN {has} THEN {value} END"


def _problems_of_json(
    events: Events, columns: StructType, given: Mapping[str, str], several: ReadTables | None
) -> list[tuple[str, str]]:
    """Return the conditions under which JSON has another value than was read, or another field, with remedies."""
    lost = (
        "the value of {} is a number with more digits than a double holds: set the connector's decimal.handling.mode"
        " to string"
    )
    misspelt = "it has no field {}, and one in another case: correct columns"
    exact = [field.name for field in columns if _may_lose(field)]
    return [
        *((_has_lost_digits(given[name]), lost.format(name)) for name in exact),
        *((_is_misspelt(events, given[name], name, several), misspelt.format(name)) for name in columns.names),
    ]


def _is_misspelt(events: Events, value: str, name: str, several: ReadTables | None) -> str:
    """Return whether a row that was written has the field of a column in another case only."""
    exact = literal(json.dumps(name, ensure_ascii=False))
    # JSON is parsed again only where the text of the record cannot tell.
    nowhere = f"instr({_TEXT}, {exact}) = 0 AND instr(lower({_TEXT}), lower({exact})) > 0"
    fields = f"exists({events.fields(_TEXT)}, field -> lower(field) = lower({literal(name)}))"
    has = None if several is None else several.has(_TABLE, name)
    return f"{f'{has} AND ' if has else ''}{value} IS NULL AND {_OPERATION} <> 'd' AND {nowhere} AND {fields}"


def _choice(argument: str, given: T, choices: Sequence[T]) -> T:
    value: T = in_own_case(given, choices)
    if value not in choices:
        raise ConfigurationError(f"{argument} is {value!r}", do=f"pass {' or '.join(map(repr, choices))}")
    return value


def _check_several(events: Events, table: str | None) -> None:
    if events.are_structs:
        raise ConfigurationError(
            "columns has several tables, and the values of the records are structs",
            why="messages of several tables have no common schema of a registry",
            do="read JSON, or make the changes of each table by itself and join them with unionByName",
        )
    if table is not None:
        raise ConfigurationError("table is set, and columns has several tables", do="leave out table")


def _check_names(columns: StructType, *own: str) -> None:
    taken = {name.lower() for name in columns.names}
    for name in own:
        if name.lower() in taken:
            raise ConfigurationError(
                f"two columns have the name {name!r}",
                do="pass another name as operation_column, sequence_column or table_column",
            )
        taken.add(name.lower())


def _of_table(events: Events, table: str | None) -> list[str]:
    """Return the condition that a change is one of the table; an event without a table is judged later."""
    if table is None:
        return []
    schema, name = events.table()
    # Names may have dots. Without its schema, only a table with another name is known to be another one.
    named = f"endswith({literal(table)}, concat('.', {name})) AND concat({schema}, '.', {name}) = {literal(table)}"
    same = f"{name} = {literal(table)} OR {named}"
    return [f"coalesce({same}, true)"]


def _may_lose(field: StructField) -> bool:
    from pyspark.sql import types

    return isinstance(field.dataType, types.DecimalType | types.StringType)


def _has_lost_digits(text: str) -> str:
    """Return whether a value was a number with more digits than a double, through which `from_json` makes it text."""
    # The length first, since it spares most values the pattern.
    number = f"length({text}) > 16 AND {text} RLIKE '^-?[0-9]+[.][0-9]+(E-?[0-9]+)?$'"
    return f"{number} AND length(regexp_replace({text}, '[^0-9]', '')) > 15 AND instr({_TEXT}, {text}) = 0"


def _problems(
    events: Events, topics: ReadTopics, table: str | None, several: ReadTables | None
) -> list[tuple[str, str]]:
    """Return the conditions under which a record is no change that can be applied, with reasons and remedies."""
    found_table = events.table()[1]
    problems = [(events.damaged(), "its value is no JSON object: correct the converter, or read Avro with deserialize")]
    problems += topics.problems()
    problems += [
        (
            f"{_OPERATION} = 't'",
            "it is a truncation, which has no order among the changes: pass on_truncate='ignore', and make the table"
            " like the source again, as the recipe for change data says",
        ),
        (
            f"coalesce({_OPERATION} NOT IN ('c', 'r', 'u', 'd'), true)",
            "it has no operation of a change: pass the form of the events, and subscribe to the table's topic only;"
            " flat events need add.fields=op",
        ),
        (
            events.hides_removals(),
            "it does not say whether its row was removed, so a removal is only a tombstone, which is left out: set"
            " delete.tombstone.handling.mode=rewrite",
        ),
        (
            "key IS NULL",
            "its record has no key, so changes of a row have no order: give the table a primary key, or set the"
            " connector's message.key.columns",
        ),
        (f"{_ROW} IS NULL", "it has no row: check the form of the events"),
    ]
    if several is not None:
        unlisted = "it is of a table that columns does not have: add the table, or read only the topics of the others"
        problems.append((f"NOT coalesce({several.is_listed(_TABLE)}, false)", unlisted))
    elif table is None:
        # In names of topics, characters that Kafka does not take are underscores. The pattern last, since few need it.
        legal = f"regexp_replace({found_table}, '[^a-zA-Z0-9._-]', '_')"
        named = " OR ".join(f"endswith(concat('.', topic), concat('.', {name}))" for name in (found_table, legal))
        another = "its table is not the one that the topic is named after: pass table, which leaves out others"
        problems.append((f"NOT ({named})", another))
    else:
        unknown = (
            "it does not say of which table it is: set add.fields=op,schema,table, in MySQL op,db,table, or leave out"
            " table if the topic has one only; of one schema, the table's name alone is enough"
        )
        found_schema = events.table()[0]
        unsure = f"coalesce({found_table} <> {literal(table)}, true) AND coalesce({found_schema}, '') = ''"
        problems.append((unsure, unknown))
    return problems


def _failing() -> str:
    where = "concat('topic ', topic, ', partition ', partition, ', offset ', offset"
    return f" ELSE raise_error({where}, ': this record cannot be applied as a change, because ', {_REASON}))"
