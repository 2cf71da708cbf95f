"""Faults of sinks that make the name of a row in the target from its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from outfall.errors import ValueRefusedError
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import ByReference, SinkHarness
from tests.unit.support.broken_sinks.registry import found_by

Name = Callable[[Any], str]


class Named(ByReference, dict[str, Any]):
    """A dictionary that all copies of a sink find."""


class NamingPartition(StatelessSinkPartition[Any]):
    def __init__(self, rows: Named, name: Name) -> None:
        self.rows = rows
        self.name = name

    def write_batch(self, values: list[Any]) -> None:
        self.rows.update({self.name(value): value for value in values})


class NamingSink(DynamicSink[Any]):
    def __init__(self, rows: Named, name: Name) -> None:
        self.rows = rows
        self.name = name

    def build(self, step_id: str, worker_index: int, worker_count: int) -> NamingPartition:
        return NamingPartition(self.rows, self.name)


class Names(SinkHarness):
    """Escapes what divides the parts of a key."""

    def new_target(self, directory: Path) -> Any:
        return Named()

    def make_sink(self, target: Any) -> Any:
        return NamingSink(target, self.name)

    def read(self, target: Any) -> Iterable[Any]:
        return list(target.values())

    def similar_rows(self) -> Sequence[Any]:
        return [{"a": "x:y", "b": "z"}, {"a": "x", "b": "y:z"}, {"a": "X", "b": "y:z"}]

    @staticmethod
    def name(row: Any) -> str:
        return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in (row["a"], row["b"]))


class RefusingNames(Names):
    """Rejects a key that contains what divides its parts."""

    @staticmethod
    def name(row: Any) -> str:
        if ":" in row["a"]:
            raise ValueRefusedError("the key of a row contains a colon", do="encode it")
        return f"{row['a']}:{row['b']}"


@found_by("similar_keys", "the target has 1 rows, and 2 were accepted")
class JoinsKeysAsTheyAre(Names):
    @staticmethod
    def name(row: Any) -> str:
        return f"{row['a']}:{row['b']}"


@found_by("similar_keys", "'X'")
class NamesInLowerCase(Names):
    @staticmethod
    def name(row: Any) -> str:
        return Names.name(row).lower()
