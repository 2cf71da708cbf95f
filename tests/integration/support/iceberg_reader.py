"""Reads Iceberg tables by their files alone: metadata as JSON, manifests as Avro, data as Parquet, no pyiceberg.

It knows what the tests write: format version 2, Parquet, no delete files. Columns are found by field id, as the
specification asks, so that a file whose ids are wrong reads wrongly.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

DELETED = 2


def path_of(location: str) -> Path:
    return Path(urlsplit(location).path)


def metadata_location(database: Path, table: str) -> str:
    """Ask an embedded catalogue where a table's metadata is."""
    namespace, _, name = table.rpartition(".")
    query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
    with closing(sqlite3.connect(database)) as connection:
        ((location,),) = connection.execute(query, (namespace, name)).fetchall()
    return str(location)


@dataclass(frozen=True)
class SnapshotFiles:
    """One snapshot, as its manifests describe it."""

    id: int
    parent: int | None
    sequence: int
    summary: dict[str, str]
    files: list[dict[str, Any]]
    """The `data_file` of each entry that is alive, as Avro has it."""

    @property
    def paths(self) -> set[Path]:
        return {path_of(file["file_path"]) for file in self.files}


class TableFiles:
    """A table as one metadata file describes it."""

    def __init__(self, location: str) -> None:
        self.metadata: dict[str, Any] = json.loads(path_of(location).read_text())

    @classmethod
    def of(cls, database: Path, table: str) -> TableFiles:
        return cls(metadata_location(database, table))

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.metadata["properties"])

    def history(self, branch: str = "main") -> list[SnapshotFiles]:
        """What a branch's head came from, oldest first, the head included."""
        known = {snapshot["snapshot-id"]: snapshot for snapshot in self.metadata.get("snapshots", [])}
        ref = self.metadata.get("refs", {}).get(branch)
        found: list[SnapshotFiles] = []
        at = ref and known.get(ref["snapshot-id"])
        while at:
            found.insert(0, self._files(at))
            at = known.get(at.get("parent-snapshot-id"))
        return found

    def head(self, branch: str = "main") -> SnapshotFiles:
        return self.history(branch)[-1]

    def rows(self, snapshot: SnapshotFiles | None = None) -> list[dict[str, Any]]:
        """The rows of a snapshot, by default of the head, under the names that the columns have now."""
        schema = next(
            each for each in self.metadata["schemas"] if each["schema-id"] == self.metadata["current-schema-id"]
        )
        return [
            row
            for file in (snapshot or self.head()).files
            for row in _read(path_of(file["file_path"]), schema["fields"], file["record_count"])
        ]

    def _files(self, snapshot: dict[str, Any]) -> SnapshotFiles:
        files = []
        for manifest in _avro(snapshot["manifest-list"]):
            assert manifest["content"] == 0, "this reader knows no delete files"
            for entry in _avro(manifest["manifest_path"]):
                if entry["status"] != DELETED:
                    files.append(entry["data_file"])
        return SnapshotFiles(
            snapshot["snapshot-id"], snapshot.get("parent-snapshot-id"), snapshot["sequence-number"],
            snapshot["summary"], files,
        )  # fmt: skip


def _avro(location: str) -> Iterator[dict[str, Any]]:
    with path_of(location).open("rb") as file:
        for record in fastavro.reader(file):
            assert isinstance(record, dict)
            yield record


def _read(path: Path, fields: list[dict[str, Any]], expected: int) -> Iterator[dict[str, Any]]:
    table = pq.read_table(path, partitioning=None)
    assert table.num_rows == expected, f"{path}: the manifest counts {expected} rows, the file has {table.num_rows}"
    ids = {int(field.metadata[b"PARQUET:field_id"]): index for index, field in enumerate(table.schema)}
    columns = [
        _values(table.column(ids[field["id"]]), table.schema.field(ids[field["id"]]), field["type"])
        if field["id"] in ids
        else [None] * table.num_rows
        for field in fields
    ]
    for row in zip(*columns, strict=True):
        yield {field["name"]: value for field, value in zip(fields, row, strict=True)}


def _values(column: pa.ChunkedArray, stored: pa.Field, kind: Any) -> list[Any]:
    return [_named(value, stored.type, kind) for value in column.to_pylist()]


def _named(value: Any, stored: pa.DataType, kind: Any) -> Any:
    """A value whose structs have the names of the table's fields, found by id."""
    if value is None or not isinstance(kind, dict):
        return value
    if kind["type"] == "struct":
        ids = {int(field.metadata[b"PARQUET:field_id"]): field for field in stored}
        return {
            field["name"]: _named(value[ids[field["id"]].name], ids[field["id"]].type, field["type"])
            if field["id"] in ids
            else None
            for field in kind["fields"]
        }
    if kind["type"] == "list":
        assert int(stored.value_field.metadata[b"PARQUET:field_id"]) == kind["element-id"]
        return [_named(each, stored.value_type, kind["element"]) for each in value]
    assert int(stored.item_field.metadata[b"PARQUET:field_id"]) == kind["value-id"]
    return {key: _named(each, stored.item_type, kind["value"]) for key, each in value}
