"""The data files of a branch head, of any writer: which may hold given keys, and the rows that readers find in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, StringType

from outfall.errors import ConfigurationError, OutfallError
from outfall.iceberg.partitions import text_of, transformed
from outfall.store_errors import Operation, explained
from outfall.tables.changes import Numbers
from outfall.tables.stored_columns import FIELD_ID
from outfall.tables.stored_rows import StoredRows

Locate = Callable[[str], tuple[pafs.FileSystem, str]]
"""Returns the filesystem of a location, and the path in it."""

Entries = Callable[[ManifestFile], Iterable[ManifestEntry]]
"""Returns the entries of a manifest that are alive."""

_REWRITE = "have another writer rewrite the file (Spark: CALL system.rewrite_data_files)"


@dataclass(frozen=True)
class IcebergFile:
    """A data file of the head."""

    entry: ManifestDataFile
    manifest: str
    """The path of the manifest that has it."""
    deletes: Sequence[ManifestDataFile]
    """The position delete files that may have rows of it."""
    plan: KeyPlan = field(repr=False)

    @property
    def path(self) -> str:
        return str(self.entry.file_path)

    def may_have(self, keys: pa.Table) -> pa.ChunkedArray | None:
        return self.plan.may_have(self.entry, keys)


def stored_files(
    manifests: Sequence[ManifestFile], entries: Entries, plan: KeyPlan, where: str
) -> Iterator[IcebergFile]:
    """Yield the data files of a snapshot. Raises `ConfigurationError` like `position_deletes`."""
    deletes = position_deletes(manifests, entries, where)
    for manifest in manifests:
        for entry in entries(manifest) if manifest.content == ManifestContent.DATA else ():
            file = entry.data_file
            theirs = deletes.for_data_file(entry.sequence_number or 0, file, file.partition)
            yield IcebergFile(file, manifest.manifest_path, sorted(theirs, key=lambda each: each.file_path), plan)


def position_deletes(manifests: Iterable[ManifestFile], entries: Entries, where: str) -> DeleteFileIndex:
    """Return the position deletes of a snapshot. Raises `ConfigurationError` if it has equality deletes."""
    found = DeleteFileIndex()
    for manifest in manifests:
        for entry in entries(manifest) if manifest.content == ManifestContent.DELETES else ():
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                raise ConfigurationError(
                    f"cannot merge rows into {where}: it has equality deletes",
                    why="another writer, such as Flink, has deleted rows by values, which pyiceberg does not read",
                    do="have Spark apply them (CALL system.rewrite_data_files, with the options"
                    " delete-file-threshold=1 and remove-dangling-deletes=true), and use MERGE in Spark with that"
                    " writer",
                )
            found.add_delete_file(entry, entry.data_file.partition)
    return found


class KeyPlan:
    """Compares keys with partitions and bounds of files, also of files with former partition specs.

    Bounds count for types whose bounds every writer gives exactly, or as strings that are cut off: a lower bound down,
    an upper one up. Bounds and strings are compared as bytes.
    """

    def __init__(self, schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        self._schema = schema
        self._specs = specs
        self._keys: pa.Table | None = None
        self._partitions: dict[tuple[int, int], _Encoded | None] = {}
        self._values: dict[str, pa.Array] = {}

    def may_have(self, file: ManifestDataFile, keys: pa.Table) -> pa.ChunkedArray | None:
        """See `StoredFile.may_have`."""
        if keys is not self._keys:
            self._keys, self._partitions, self._values = keys, {}, {}
        found = None
        for name in keys.column_names:
            column = self._schema.find_field(name)
            for these in self._answers(file, column.field_id, column.field_type, name, keys):
                found = these if found is None else pc.and_(found, these)
        return None if found is None else pa.chunked_array([pc.fill_null(found, False)])

    def _answers(
        self, file: ManifestDataFile, number: int, kind: IcebergType, name: str, keys: pa.Table
    ) -> Iterator[pa.Array]:
        for index, each in enumerate(self._specs[file.spec_id].fields):
            if each.source_id == number and not isinstance(each.transform, VoidTransform | UnknownTransform):
                encoded = self._encoded(file.spec_id, index, each, name, keys)
                if encoded is not None:
                    yield encoded.equal(file.partition[index])
        if isinstance(kind, IntegerType | LongType | DateType | StringType):
            for bounds, compare in ((file.lower_bounds, pc.greater_equal), (file.upper_bounds, pc.less_equal)):
                bound = (bounds or {}).get(number)
                if bound is not None:
                    yield compare(self._comparable(kind, name, keys), _bound(kind, bound))

    def _encoded(self, spec: int, index: int, each: PartitionField, name: str, keys: pa.Table) -> _Encoded | None:
        """Return the partition values of the keys; `None` if one has none."""
        at = (spec, index)
        if at not in self._partitions:
            try:
                self._partitions[at] = _Encoded(transformed(self._schema, each, _whole(keys.column(name))))
            except OutfallError:
                self._partitions[at] = None
        return self._partitions[at]

    def _comparable(self, kind: IcebergType, name: str, keys: pa.Table) -> pa.Array:
        if name not in self._values:
            column = _whole(keys.column(name))
            if isinstance(kind, StringType):
                self._values[name] = column.cast(pa.binary())
            else:
                self._values[name] = (column.cast(pa.int32()) if isinstance(kind, DateType) else column).cast(
                    pa.int64()
                )
        return self._values[name]


class _Encoded:
    """Partition values, compared as strings in the form of `text_of`."""

    def __init__(self, values: pa.Array) -> None:
        encoded = values.dictionary_encode()
        self._codes = encoded.indices
        self._code = {text_of(value): code for code, value in enumerate(encoded.dictionary.to_pylist())}

    def equal(self, value: Any) -> pa.Array:
        code = None if value is None else self._code.get(text_of(value))
        return pa.repeat(False, len(self._codes)) if code is None else pc.equal(self._codes, code)


def _bound(kind: IcebergType, bound: bytes) -> pa.Scalar:
    """Return a bound of a file, which may be of the type that the column had before it was widened."""
    if isinstance(kind, StringType):
        return pa.scalar(bound, pa.binary())
    return pa.scalar(int.from_bytes(bound, "little", signed=True), pa.int64())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


class IcebergRows(StoredRows):
    """The rows of a file that are not deleted. `locate` is called with a location."""

    def __init__(
        self, locate: Locate, file: IcebergFile, columns: pa.Schema, schema: Schema, spec: PartitionSpec
    ) -> None:
        super().__init__(lambda: locate(file.path), file.path, columns, {})
        self._locate_any = locate
        self._file = file
        self._schema = schema
        self._spec = spec

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises `ConfigurationError` for a file that only other readers understand."""
        self._check()
        begin = 0
        for batch in super().batches(names):
            low, high = np.searchsorted(self._deleted, (begin, begin + batch.num_rows))
            kept = np.ones(batch.num_rows, np.bool_)
            kept[self._deleted[low:high] - begin] = False
            begin += batch.num_rows
            if kept.any():
                yield batch if high == low else batch.filter(pa.array(kept))

    def _check(self) -> None:
        entry = self._file.entry
        why = None
        if entry.file_format != FileFormat.PARQUET:
            why = f"its format is {entry.file_format}, and the sink reads Parquet"
        elif entry.key_metadata is not None:
            why = "it is encrypted"
        else:
            ids = {(column.metadata or {}).get(FIELD_ID) for column in self.opened.schema_arrow}
            known = {int(number) for number in ids if number is not None}
            if None in ids:
                why = "its columns have no field ids: it was made for another table format"
            elif any(
                each.source_id not in known and each.source_id in self._schema.field_ids
                for each in self._spec.fields
                if isinstance(each.transform, IdentityTransform)
            ):
                why = "it lacks a column that the table is partitioned by"
        if why is not None:
            raise ConfigurationError(f"cannot rewrite the data file {self.path!r} of the table", why=why, do=_REWRITE)

    @cached_property
    def _deleted(self) -> Numbers:
        """The positions of deleted rows, in ascending order."""
        found = [positions for each in self._file.deletes for positions in self._positions(each)]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def _positions(self, deletes: ManifestDataFile) -> Iterator[Numbers]:
        if deletes.file_format != FileFormat.PARQUET:
            raise ConfigurationError(
                f"cannot read the delete file {deletes.file_path!r} of the table",
                why=f"its format is {deletes.file_format}, and the sink reads Parquet",
                do=_REWRITE,
            )
        try:
            filesystem, path = self._locate_any(deletes.file_path)
            with pq.ParquetFile(filesystem.open_input_file(path)) as opened:
                for batch in opened.iter_batches(columns=["file_path", "pos"]):
                    ours = pc.equal(batch.column("file_path"), self.path)
                    yield batch.column("pos").filter(ours).to_numpy(zero_copy_only=False).astype(np.int64)
        except OSError as error:
            raise explained(
                error,
                f"the delete file {deletes.file_path!r} of the table could not be read",
                url=deletes.file_path,
                operation=Operation.READ,
                do="check that the store is reachable from the driver, then start the query again: no rows are lost",
            ) from error
