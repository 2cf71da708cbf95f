"""Faults of sinks that keep one row per key."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outfall.capabilities import DeclaresGuarantee, Guarantee, SupportsWriterContext, WriterInitContext
from outfall.errors import ValueRefusedError
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import ByReference, SinkHarness
from tests.unit.support.broken_sinks.registry import found_by


class Table(ByReference):
    """Rows by key, and rows whose key is NULL, which no unique index compares."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.nulls: list[Any] = []

    def upsert(self, rows: dict[Any, Any]) -> None:
        nulls = [row for key, row in rows.items() if key is None]
        self.nulls += nulls
        self.rows |= {key: row for key, row in rows.items() if key is not None}

    def visible(self) -> list[Any]:
        return [*self.rows.values(), *self.nulls]


class UpsertingPartition(StatelessSinkPartition[Any]):
    """Keeps the last row of each key, and upserts them together."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows: dict[Any, Any] = {}

    def write_batch(self, values: list[Any]) -> None:
        self.rows |= {value["id"]: value for value in values}

    def flush(self, end_of_input: bool) -> None:
        self.table.upsert(self.rows)


class CheckingPartition(UpsertingPartition):
    """Rejects NULL."""

    def write_batch(self, values: list[Any]) -> None:
        if any(value["id"] is None for value in values):
            raise ValueRefusedError("the key of a row is NULL", do="leave the row out")
        super().write_batch(values)


class NullSafePartition(UpsertingPartition):
    """Takes all NULLs for equal, also in the table."""

    def flush(self, end_of_input: bool) -> None:
        if None in self.rows:
            self.table.nulls.clear()
        super().flush(end_of_input)


class UpsertingSink(DynamicSink[Any], SupportsWriterContext, DeclaresGuarantee):
    declared = True

    def __init__(self, table: Table, partition: type[UpsertingPartition]) -> None:
        self.table = table
        self.partition = partition

    def bind(self, context: WriterInitContext) -> UpsertingSink:
        return self

    def build(self, step_id: str, worker_index: int, worker_count: int) -> UpsertingPartition:
        return self.partition(self.table)

    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def replaces_rows(self) -> bool:
        return self.declared


class BoastingSink(UpsertingSink):
    def keeps_newer_rows(self) -> bool:
        return True


class UndeclaredSink(UpsertingSink):
    declared = False


class Upserts(SinkHarness):
    """Rejects NULL in a key, and declares that rows replace each other."""

    partition: type[UpsertingPartition] = CheckingPartition
    sink: type[UpsertingSink] = UpsertingSink

    def new_target(self, directory: Path) -> Any:
        return Table()

    def make_sink(self, target: Any) -> Any:
        return self.sink(target, self.partition)

    def read(self, target: Any) -> Iterable[Any]:
        return list(target.visible())

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}


class NullSafeUpserts(Upserts):
    partition = NullSafePartition


@found_by("null_in_a_key", "two rows with NULL in their key are 1 row after one epoch, 2 rows after two")
class ComparesNullsWithinAnEpochOnly(Upserts):
    partition = UpsertingPartition


class UnversionedSink(UpsertingSink):
    def guarantee(self) -> Guarantee:
        return Guarantee.EFFECTIVELY_ONCE


@found_by("late_zombie", "3 are missing in their newest version.*had replaced their rows in a later epoch")
class ComparesNoVersions(Upserts):
    sink = UnversionedSink


@found_by("in_wrappers", "the sink was in BatchingSink with across_epochs.*return True in .*replaces_rows")
class DoesNotSayThatRowsReplaceEachOther(Upserts):
    sink = UndeclaredSink


@found_by("older_row_later", "3 are missing in their newest version.*return False in .*keeps_newer_rows")
class SaysThatItKeepsNewerRows(Upserts):
    sink = BoastingSink


class ComparingPartition(UpsertingPartition):
    """Keeps the row with the greater version."""

    def flush(self, end_of_input: bool) -> None:
        stored = self.table.rows
        newer = {key: row for key, row in self.rows.items() if key not in stored or stored[key]["text"] < row["text"]}
        self.table.upsert(newer)


class ComparesVersions(SaysThatItKeepsNewerRows):
    partition = ComparingPartition
