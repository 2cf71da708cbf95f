"""Delete files as other writers make them: pyiceberg has the format of their manifests, but writes none."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

_PATH, _POSITION = 2147483546, 2147483545
"""The field ids of a position delete file."""
_STATISTICS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _DeleteRows(_FastAppendFiles):
    deletes: Sequence[DataFile] = ()

    def _manifests(self) -> list[ManifestFile]:
        output = self.new_manifest_output()
        writer = _DeletesWriter(self.spec(0), self.schema(), output, self.snapshot_id, self._compression)
        with writer:
            for file in self.deletes:
                entry: dict[str, Any] = {
                    "status": ManifestEntryStatus.ADDED,
                    "snapshot_id": self.snapshot_id,
                    "sequence_number": None,
                    "file_sequence_number": None,
                    "data_file": file,
                }
                writer.add(ManifestEntry.from_args(**entry))
        return [writer.to_manifest_file(), *super()._manifests()]


def delete_positions(table: Table, path: str, positions: Sequence[int]) -> None:
    """Delete rows of a data file of an unpartitioned table by their positions."""
    columns: dict[pa.Field, list[Any]] = {
        _field("file_path", pa.string(), _PATH): [path] * len(positions),
        _field("pos", pa.int64(), _POSITION): list(positions),
    }
    _commit(table, columns, content=DataFileContent.POSITION_DELETES, equality_ids=None)


def delete_values(table: Table, column: str, values: Sequence[int]) -> None:
    """Delete rows of an unpartitioned table by values of a long column."""
    number = table.schema().find_field(column).field_id
    columns = {_field(column, pa.int64(), number): list(values)}
    _commit(table, columns, content=DataFileContent.EQUALITY_DELETES, equality_ids=[number])


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, False, metadata={b"PARQUET:field_id": str(number).encode()})


def _commit(table: Table, columns: dict[pa.Field, list[Any]], **about: Any) -> None:
    path = f"{table.location()}/data/deletes-{uuid.uuid4().hex}.parquet"
    rows = pa.table([pa.array(values, each.type) for each, values in columns.items()], schema=pa.schema(list(columns)))
    with table.io.new_output(path).create() as stream:
        pq.write_table(rows, stream)
    counts: dict[str, Any] = {
        name: {}
        for name in (
            "column_sizes",
            "value_counts",
            "null_value_counts",
            "nan_value_counts",
            "lower_bounds",
            "upper_bounds",
        )
    }
    file = DataFile.from_args(
        file_path=path, file_format=FileFormat.PARQUET, partition=Record(), record_count=rows.num_rows,
        file_size_in_bytes=len(table.io.new_input(path)), spec_id=0, sort_order_id=None, key_metadata=None,
        split_offsets=None, **counts, **about,
    )  # fmt: skip
    transaction = table.transaction()
    deleting = _DeleteRows(operation=Operation.OVERWRITE, transaction=transaction, io=table.io, branch="main")
    deleting.deletes = [file]
    deleting.commit()
    transaction.commit_transaction()
