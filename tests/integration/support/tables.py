"""Tables of both formats that tests write to, read by DuckDB."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import Properties, load, new_namespace


class LakeTable(ABC):
    """A table that does not exist until a sink makes it."""

    def __init__(self, duck: Duck) -> None:
        self._duck = duck

    @abstractmethod
    def sink(self, **options: Any) -> Any:
        """Make a sink that creates the table."""

    @abstractmethod
    def options(self) -> dict[str, str]:
        """Return the same as options of Spark."""

    @abstractmethod
    def states(self) -> Sequence[int]:
        """Return the ids of the snapshots, or versions, that readers can choose, the oldest first."""

    @abstractmethod
    def read(self, columns: str, state: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a state, or of the newest one."""

    def ids(self, state: int | None = None) -> list[int]:
        return sorted(number for (number,) in self.read("id", state)) if self.states() else []

    def all_states(self) -> Iterator[list[int]]:
        """Yield the ids of the rows in each state."""
        return map(self.ids, self.states())


class IcebergLake(LakeTable):
    """A table in a namespace of its own."""

    def __init__(self, duck: Duck, catalog: Properties) -> None:
        super().__init__(duck)
        self.catalog = catalog
        self.name = f"{new_namespace(catalog)}.t"

    def sink(self, **options: Any) -> IcebergSink:
        given: dict[str, Any] = {"create_table": "if_missing", "catalog_options": self.catalog}
        return IcebergSink(self.name, **(given | options))

    def options(self) -> dict[str, str]:
        options = {"table": self.name, "catalog_options": json.dumps(self.catalog), "create_table": "if_missing"}
        return {"sink": "iceberg", **options}

    def table(self) -> Any:
        return load(self.catalog).load_table(self.name)

    def states(self) -> list[int]:
        if not load(self.catalog).table_exists(self.name):
            return []
        return [snapshot.snapshot_id for snapshot in self.table().snapshots()]

    def read(self, columns: str, state: int | None = None) -> list[tuple[Any, ...]]:
        return self._duck.iceberg(self.table().metadata_location, columns, snapshot=state)


class DeltaLake(LakeTable):
    """A table in a directory of its own."""

    def __init__(self, duck: Duck, directory: Path) -> None:
        super().__init__(duck)
        self.directory = directory / f"table-{uuid.uuid4().hex}"

    def sink(self, **options: Any) -> DeltaSink:
        given: dict[str, Any] = {"create_table": "if_missing"}
        return DeltaSink(str(self.directory), **(given | options))

    def options(self) -> dict[str, str]:
        return {"sink": "delta", "path": str(self.directory), "create_table": "if_missing"}

    def states(self) -> list[int]:
        if not DeltaTable.is_deltatable(str(self.directory)):
            return []
        return list(range(DeltaTable(self.directory).version() + 1))

    def read(self, columns: str, state: int | None = None) -> list[tuple[Any, ...]]:
        return self._duck.delta(self.directory, columns, version=state)
