"""Several tables in memory, of which a column names the one of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from outfall.capabilities import changed
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableStore


def links_to(*names: str, absent: Iterable[str] = (), spec: tuple[str, ...] = ()) -> dict[str, TableLink]:
    """Make tables; those that are absent have a place and do not exist."""
    links = {name: TableLink(TableStore(spec=spec)) for name in (*names, *absent)}
    for name in absent:
        links[name].store.drop()
    return links


class MemoryTablesSink(MemoryTableSink):
    """Writes each row into the table that its column `place` names."""

    def __init__(self, links: Mapping[str, TableLink], at_once: int = 1, **options: Any) -> None:
        super().__init__(next(iter(links.values())), **{"table_column": "place", "allowed_tables": "t*", **options})
        self.links = dict(links)
        self.at_once = at_once

    def calls_at_once(self) -> int:
        return self.at_once

    def of_table(self, name: str) -> Self:
        return changed(super().of_table(name), link=self.links[name])

    def existing(self) -> Iterable[str]:
        return list(self.links)

    def target(self) -> str:
        return f"memory tables {self.link.store.name}" if self.options.are_many else super().target()
