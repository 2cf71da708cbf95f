"""First contact with one of many tables: in a task at its first row, on the driver with those of the last epoch.

A table without the step's record is not the one that the step wrote to: it was dropped, renamed or created again. That
stops only rows that name it. If it was created again and never had rows, it is a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.capabilities import TargetContext
from outfall.errors import ConfigurationError, OutfallError, TargetLostError, TransientError
from outfall.tables.area import directory_of, mark_of
from outfall.tables.many import context_of_table
from outfall.tables.record import TableRecord
from outfall.tables.table import LoadedTable
from outfall.tables.writer import WrittenTable

if TYPE_CHECKING:
    from outfall.capabilities import WriterInitContext
    from outfall.tables.sink import TableSink

log = logging.getLogger(__name__)


class Meeting:
    """Checks and opens the tables that the rows of a task name, each once.

    `sink` is the sink as tasks use it, and `context` what the recovery data said when the epoch began.
    """

    def __init__(self, sink: TableSink, context: TargetContext[Any], attempt: WriterInitContext) -> None:
        self._sink = sink
        self._context = context
        self._attempt = attempt
        self.at_once = sink.calls_at_once()
        self._apart: set[str] = set()
        """What `check_apart` need not look at again."""

    def __call__(self, name: str, rows: pa.Schema) -> tuple[WrittenTable, frozenset[str]]:
        """Return the table, and the columns of the rows that it does not have and that are left out."""
        self._sink.check_apart(name, self._apart)
        one = self._sink.of_table(name)
        table, context = one.loaded(), context_of_table(self._context, name)
        _check_one_name(self._sink, name, table, self._context)
        context = _as_new(table, context)
        one.check_keys_known()
        unknown: frozenset[str] = frozenset()
        if self._sink.options.unknown_columns == "leave_out_null":
            unknown = one.unknown(table, rows)
            rows = pa.schema([field for field in rows if field.name not in unknown])
        one.check_loaded(table, context, rows)
        opened = one.open_loaded(table, rows, context)
        mark, attempt = mark_of(name, opened.layout.layout.table), self._attempt
        directory = directory_of(attempt.incarnation, attempt.generation, attempt.token, mark)
        return WrittenTable(opened.layout, opened.published, directory, name), unknown


def check_last_tables(sink: TableSink, context: TargetContext[Any]) -> None:
    """Check the tables of the last completed epoch, because its rows are skipped if Spark replays it.

    Those that are no longer the step's are only logged: they stop no others, and rows that name them are refused. If it
    has no table any more, they are probably elsewhere, be there others of these names.

    Raises `TargetLostError` if none is left, or if one was rolled back, and the other errors of a single table.
    """
    known = context.children_published
    last = [name for name, epoch in known.items() if epoch == context.completed]
    absent = []
    for name in last:
        one = sink.of_table(name)
        table = one.loaded()
        if _committed(table, context) is None:
            absent.append(name)
        else:
            one.check_loaded(table, context_of_table(context, name))
    if len(absent) < len(last) or not known or any(_holds_epoch(sink, name, context) for name in known):
        if absent:
            log.warning(
                "%s: %d tables of epoch %s are missing or were created again, such as %r. The others are written. Rows"
                " that name such a table stop the query until it is restored, renamed back, or created without rows",
                sink.target(), len(absent), context.completed, absent[0],
            )  # fmt: skip
        return
    raise TargetLostError(
        f"{sink.target()}: none of the {len(known)} tables that this query has written to is there with its record,"
        f" such as {next(iter(known))!r}",
        step=context.step_id,
        why="the sink now looks for them elsewhere, or they were dropped, renamed or created again",
        do="give the sink its former options, restore the tables, or rename them back; if their rows are not wanted any"
        " more, start the query with a new checkpoint",
    )


def existing_tables(sink: TableSink) -> Iterator[TableSink]:
    """Yield the sink of each table that rows may have been written to."""
    names = sink.patiently("listing", lambda: list(sink.existing()))
    yield from map(sink.of_table, dict.fromkeys(names))


def skips(sink: TableSink, error: OutfallError) -> bool:
    """Return whether clean-up goes on with other tables after an error of this one, which is logged.

    Any table may match `allowed_tables`, and one that this sink cannot read has none of its files.
    """
    if isinstance(error, TransientError):
        return False
    log.warning("%s is not cleaned up, and other tables are: %s", sink.target(), error)
    return True


def _holds_epoch(sink: TableSink, name: str, context: TargetContext[Any]) -> bool:
    return _committed(sink.of_table(name).loaded(), context) is not None


def _as_new(table: LoadedTable | None, context: TargetContext[Any]) -> TargetContext[Any]:
    """Return the context of a new table for one that was created again, and has no rows of anybody."""
    if table is None or context.published is None or _committed(table, context) is not None:
        return context
    return replace(context, published=None, completed=None) if table.never_had_rows() else context


def _committed(table: LoadedTable | None, context: TargetContext[Any]) -> TableRecord | None:
    """Return the step's record in a table, if it has an epoch: clean-up writes one without."""
    record = None if table is None or not context.incarnation else table.record(context.incarnation)
    return None if record is None or record.epoch < 0 else record


def _check_one_name(sink: TableSink, name: str, table: LoadedTable | None, context: TargetContext[Any]) -> None:
    """Reject a table that this step wrote to under another name: the log has its newest epoch under that name.

    Raises `ConfigurationError`.
    """
    record = None if name in context.children_published else _committed(table, context)
    if table is None or record is None:
        return
    gone = []
    for other in [each for each, epoch in context.children_published.items() if epoch == record.epoch]:
        its = sink.of_table(other).loaded()
        if its is not None and its.files.layout.table == table.files.layout.table:
            raise ConfigurationError(
                f"rows name one table in two ways, {other!r} and {name!r}",
                step=context.step_id,
                why=f"rows of earlier epochs named it {other!r}, and the recovery data knows it by that name",
                do=f"give all rows of the table the name {other!r}",
            )
        if its is None:
            gone.append(repr(other))
    if gone:
        raise ConfigurationError(
            f"the table {name!r} has rows that this query wrote under another name",
            step=context.step_id,
            why=f"it was renamed, probably from {' or '.join(gone[:3])}, by which the recovery data knows it",
            do="rename it back, give its rows that name, and start the query again",
        )
