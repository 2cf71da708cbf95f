"""The base of table sinks is exactly once: the suite does not refute it over a model of a table format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import Guarantee
from outfall.tables.data_file import EpochFiles
from outfall.testing import SinkConformance, SinkHarness
from tests.unit.support.conforming import saved
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableStore
from tests.unit.support.memory_tables import MemoryTablesSink


class ModelTables(SinkHarness):
    claim = Guarantee.EXACTLY_ONCE
    not_claimed = dict.fromkeys(
        ["tasks_in_processes_of_their_own", "killed_before_close", "killed_at_every_step"],
        "the table is in this process; real catalogues come with the formats",
    )
    most_cases = 60

    def new_target(self, directory: Path) -> TableLink:
        return TableLink(TableStore({"id": "int64", "text": "string", "kind": "int64"}, ["kind"]))

    def make_sink(self, target: TableLink) -> MemoryTableSink:
        return MemoryTableSink(target)

    def row(self, number: int) -> Any:
        return {**super().row(number), "kind": None if number % 3 == 0 else number % 3}

    def read(self, target: TableLink) -> list[Any]:
        return target.store.rows() if target.store.state else []

    def lose(self, target: TableLink, committable: EpochFiles) -> None:
        for name in committable.names:
            target.store.delete(f"{committable.directory}/{name}")

    def lose_target(self, target: TableLink) -> None:
        """Drop the table, and make another one of its name."""
        target.store.drop()
        target.store.create({"id": "int64", "text": "string", "kind": "int64"}, ["kind"])

    def save_target(self, target: TableLink) -> Callable[[], None]:
        """Copy the catalogue; the files stay."""
        return saved(target.store, "state")

    def leftovers(self, target: TableLink) -> int:
        return len(set(target.store.paths()) - target.store.named_paths())

    @contextmanager
    def breaking(self, target: TableLink) -> Iterator[None]:
        target.gone = True
        try:
            yield
        finally:
            target.gone = False


class ManyModelTables(SinkHarness):
    """A target is two tables, which its rows name in turn."""

    claim = Guarantee.EXACTLY_ONCE
    not_claimed = ModelTables.not_claimed
    most_cases = 60
    one = ModelTables()

    def new_target(self, directory: Path) -> list[TableLink]:
        return [self.one.new_target(directory) for _ in range(2)]

    def make_sink(self, target: list[TableLink]) -> MemoryTablesSink:
        return MemoryTablesSink({f"t{number}": link for number, link in enumerate(target)})

    def row(self, number: int) -> Any:
        return {**self.one.row(number), "place": f"t{number % 2}"}

    def read(self, target: list[TableLink]) -> list[Any]:
        return [{**row, "place": f"t{number}"} for number, link in enumerate(target) for row in self.one.read(link)]

    def lose(self, target: list[TableLink], committable: EpochFiles) -> None:
        self.one.lose(target[int((committable.table or "")[1:])], committable)

    def lose_target(self, target: list[TableLink]) -> None:
        for link in target:
            self.one.lose_target(link)

    def save_target(self, target: list[TableLink]) -> Callable[[], None]:
        saved_ones = [self.one.save_target(link) for link in target]

        def restore() -> None:
            for each in saved_ones:
                each()

        return restore

    def leftovers(self, target: list[TableLink]) -> int:
        return sum(map(self.one.leftovers, target))

    @contextmanager
    def breaking(self, target: list[TableLink]) -> Iterator[None]:
        with self.one.breaking(target[0]), self.one.breaking(target[1]):
            yield


@pytest.mark.thorough
class TestModelTables(ModelTables, SinkConformance):
    pass


@pytest.mark.thorough
class TestManyModelTables(ManyModelTables, SinkConformance):
    pass
