"""Tables into which lives of a driver write while others change them, as DuckDB sees each of their states."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import sqlalchemy
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import load
from tests.integration.support.lives import Row
from tests.integration.support.watched_places import Place

COLUMNS = ("epoch", "life", "n")
MOST_COLUMNS = 6
"""Each one makes another version of the schema, with which pyiceberg gets slower."""
THEIRS = -1
"""The epoch of rows that other writers append."""
_OTHER_ROWS = pa.table({name: pa.array([THEIRS] * 3, pa.int64()) for name in COLUMNS})


class WatchedTable(Place):
    """A table of which each state, snapshot or version, is read once, and the newest one as often as anybody asks."""

    changeable = True
    notes_empty_epochs = False
    zombies_leave = True
    pause = 0.1

    def __init__(self, duck: Duck, chance: random.Random) -> None:
        self._duck = duck.another()
        self._chance = random.Random(chance.random())
        self._seen: set[int] = set()

    @abstractmethod
    def states(self) -> tuple[list[int], Callable[[int], list[tuple[Any, ...]]]]:
        """Return the table's states, the newest one last, and how the rows of one are read."""

    @abstractmethod
    def others_do(self, what: str) -> None:
        """Change the table as another writer would; what it could not commit is left."""

    deeds: tuple[str, ...]
    """What others do."""

    def rows(self) -> list[Row]:
        states, read = self.states()
        return _ours(read(states[-1])) if states else []

    def views(self) -> Iterator[list[Row]]:
        states, read = self.states()
        for state in states:
            if state not in self._seen:
                yield _ours(read(state))
                self._seen.add(state)

    def meddle(self) -> str:
        what = self._chance.choice(self.deeds)
        self.others_do(what)
        return what

    def close(self) -> None:
        self._duck.close()


def _ours(rows: list[tuple[Any, ...]]) -> list[Row]:
    return [(epoch, life, number) for epoch, life, number in rows if epoch != THEIRS]


class WatchedIceberg(WatchedTable):
    """A table of Iceberg. Where its metadata is stands in the catalogue's own database, which is asked by SQL."""

    deeds = ("append", "append", "rewrite", "expire", "add column", "partition otherwise")

    def __init__(self, duck: Duck, chance: random.Random, catalog: Mapping[str, str]) -> None:
        super().__init__(duck, chance)
        self._catalog = catalog
        self._database = sqlalchemy.create_engine(catalog["uri"])
        fields = [NestedField(number, name, LongType()) for number, name in enumerate(COLUMNS, 1)]
        by_number = PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="n")
        loaded = load(catalog)
        loaded.create_namespace("ns")
        loaded.create_table(
            "ns.t",
            schema=IcebergSchema(*fields),
            partition_spec=PartitionSpec(*[by_number] * chance.choice([0, 1])),
            properties={"write.metadata.previous-versions-max": "100000"},
        )
        self.sink = IcebergSink("ns.t", catalog_options=dict(catalog))

    def states(self) -> tuple[list[int], Callable[[int], list[tuple[Any, ...]]]]:
        where = self._metadata()
        metadata = _read_json(where)
        found = sorted(metadata.get("snapshots", ()), key=lambda snapshot: snapshot["sequence-number"])
        return [snapshot["snapshot-id"] for snapshot in found], lambda state: self._duck.iceberg(
            where, ", ".join(COLUMNS), snapshot=state
        )

    def _metadata(self) -> str:
        with self._database.connect() as connection:
            return str(connection.execute(sqlalchemy.text("SELECT metadata_location FROM iceberg_tables")).scalar_one())

    def others_do(self, what: str) -> None:
        table = load(self._catalog).load_table("ns.t")
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with suppress(CommitFailedException):
            if what == "append":
                table.append(_filled(_OTHER_ROWS, table))
            elif what == "rewrite":
                table.overwrite(table.scan().to_arrow())
            elif what == "expire":
                head = table.metadata.current_snapshot_id
                old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != head]
                table.maintenance.expire_snapshots().by_ids(old).commit()
            elif what == "add column" and len(table.schema().fields) < MOST_COLUMNS:
                with table.update_schema() as update:
                    update.add_column(f"x{len(table.schema().fields)}", LongType())
            elif what == "partition otherwise":
                with table.update_spec() as spec:
                    if table.spec().fields:
                        spec.remove_field(table.spec().fields[0].name)
                    else:
                        spec.add_identity("n")

    def leftovers(self) -> list[str]:
        """Files of ours that no snapshot ever named, expired ones among them: the newest metadata names all before."""
        newest = self._metadata()
        logged = [entry["metadata-file"] for entry in _read_json(newest).get("metadata-log", ())]
        lists = {
            snapshot["manifest-list"]
            for where in (*logged, newest)
            for snapshot in _read_json(where).get("snapshots", ())
        }
        manifests = self._avro("manifest_path", lists)
        named = self._avro("data_file.file_path", manifests)
        location = _read_json(newest)["location"]
        files = Path(location.removeprefix("file://")).glob("**/outfall/**/*.parquet")
        return sorted({f"file://{path}" for path in files} - named)

    def _avro(self, column: str, paths: set[str]) -> set[str]:
        if not paths:
            return set()
        listed = ", ".join(f"'{path}'" for path in paths)
        return {value for (value,) in self._duck.query(f"SELECT {column} FROM read_avro([{listed}])")}

    def close(self) -> None:
        self._database.dispose()
        super().close()


def _filled(rows: pa.Table, table: Table) -> pa.Table:
    """Rows with all columns that the table has."""
    for field in table.schema().as_arrow():
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    return rows


def _read_json(where: str) -> Any:
    return json.loads(Path(where.removeprefix("file://")).read_text())


class WatchedDelta(WatchedTable):
    """A table of Delta Lake in a directory."""

    deeds = ("append", "append", "compact", "checkpoint", "add column", "set property")

    def __init__(self, duck: Duck, chance: random.Random, directory: Path) -> None:
        super().__init__(duck, chance)
        self._directory = directory
        DeltaTable.create(
            directory,
            Schema([Field(name, "long") for name in COLUMNS]),  # type: ignore[arg-type]
            partition_by=chance.choice([[], ["n"]]),
        )
        self.sink = DeltaSink(str(directory))

    def states(self) -> tuple[list[int], Callable[[int], list[tuple[Any, ...]]]]:
        versions = sorted(int(path.stem) for path in self._log() if path.stem.isdigit())
        return versions, lambda state: self._duck.delta(self._directory, ", ".join(COLUMNS), version=state)

    def _log(self) -> Iterator[Path]:
        return (self._directory / "_delta_log").glob("*.json")

    def others_do(self, what: str) -> None:
        with suppress(CommitFailedError):
            if what == "append":
                write_deltalake(self._directory, _OTHER_ROWS, mode="append", schema_mode="merge")
                return
            table = DeltaTable(self._directory)
            if what == "compact":
                table.optimize.compact()
            elif what == "checkpoint":
                table.create_checkpoint()
            elif what == "add column" and len(table.schema().fields) < MOST_COLUMNS:
                table.alter.add_columns(Field(f"x{len(table.schema().fields)}", "long"))  # type: ignore[arg-type]
            elif what == "set property":
                table.alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})

    def leftovers(self) -> list[str]:
        """Files of ours that no version ever added."""
        actions = [json.loads(line) for path in self._log() for line in path.read_text().splitlines()]
        named = {unquote(action["add"]["path"]) for action in actions if "add" in action}
        files = (self._directory / "outfall").rglob("*.parquet")
        return sorted({str(path.relative_to(self._directory)) for path in files} - named)
