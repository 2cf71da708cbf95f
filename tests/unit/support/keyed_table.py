"""The table in memory, with data files that are found by key and replaced one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from outfall.capabilities import CommittableMessage, CommitterInitContext, WriterInitContext
from outfall.errors import ConfigurationError
from outfall.tables.data_file import EpochFiles
from outfall.tables.key_options import KeyOptions
from outfall.tables.keyed import KeyedLayout, KeyedTable, StoredFile
from outfall.tables.merge import MergeRows
from outfall.tables.record import TableRecord
from outfall.tables.stored_rows import StoredRows
from outfall.tables.table import FileLayout, LoadedTable
from outfall.tables.writer import TableWriter
from tests.unit.support.memory_table import (
    FIELD_ID,
    TYPES,
    DataEntry,
    MemoryLayout,
    MemoryTable,
    TableLink,
    TableState,
    TableStore,
)  # fmt: skip

INCARNATION, TOKEN = "0123456789abcdef", f"{1:016x}"


class KeyedMemoryLayout(MemoryLayout, KeyedLayout):
    @property
    def columns(self) -> pa.Schema:
        named = self._columns.items()
        return pa.schema([pa.field(name, TYPES[kind], metadata={FIELD_ID: str(at)}) for name, (at, kind) in named])

    def only(self, names: Collection[str]) -> FileLayout:
        assert self._link.store.state is not None
        found = KeyedMemoryLayout(self._link, self._link.store.state)
        found._columns = {name: self._columns[name] for name in names}
        return found

    def check_values(self, rows: pa.RecordBatch, gone: pa.Array | None) -> None:
        pass

    def unchecked(self) -> FileLayout:
        return self


@dataclass(frozen=True)
class KeyedFile:
    """A data file, with the lowest and the highest value of a column; `None` if they are not known."""

    entry: DataEntry
    bounds: tuple[str, int, int] | None

    @property
    def path(self) -> str:
        return self.entry.path

    def may_have(self, keys: pa.Table) -> pa.ChunkedArray | None:
        if self.bounds is None:
            return None
        name, low, high = self.bounds
        return pa.chunked_array([[value is not None and low <= value <= high for value in keys[name].to_pylist()]])


class KeyedMemoryTable(MemoryTable, KeyedTable):
    orphans = "exclude them"
    on_disk = False
    bounds: Mapping[str, tuple[str, int, int]] = {}
    """What is known of the files, by their paths."""
    kept: Collection[str] = ()
    """The paths of files that cannot be removed."""

    def __init__(self, link: TableLink, state: TableState) -> None:
        super().__init__(link, state)
        self.read: list[str] = []
        """The files that were looked into."""

    @property
    def files(self) -> KeyedMemoryLayout:
        return KeyedMemoryLayout(self._link, self._state)

    def stored(self, keys: Sequence[str]) -> Iterator[KeyedFile]:
        for entry in self._state.current.entries:
            yield KeyedFile(entry, self.bounds.get(entry.path))

    def rows(self, file: StoredFile) -> StoredRows:
        def locate() -> Any:
            self.read.append(file.path)
            filesystem, root = self._link.open()
            return filesystem, f"{root}/{file.path}"

        return StoredRows(locate, file.path, self.files.columns, {})

    def check_removable(self, file: StoredFile) -> None:
        if file.path in self.kept:
            raise ConfigurationError(f"{file.path} cannot be removed")

    def commit_merged(
        self, files: EpochFiles, record: TableRecord, replaced: Collection[StoredFile], *, everything: bool
    ) -> LoadedTable:
        gone = {file.path for file in replaced}
        kept = [entry for entry in self._state.current.entries if not everything and entry.path not in gone]
        return self._commit(files, record, kept)

    def merged(self, record: TableRecord, directory: str) -> Collection[str] | None:
        entries = self._state.snapshots[record.head].entries if record.head in self._state.snapshots else ()
        return {entry.path.rpartition("/")[2] for entry in entries if entry.path.startswith(f"{directory}/")}


@dataclass
class KeyedStep:
    """A step that merges epochs into a table in memory."""

    columns: Mapping[str, str]
    given: Mapping[str, Any]
    epoch: int = 0

    def __post_init__(self) -> None:
        self.options = KeyOptions(**{"write_mode": "upsert"} | dict(self.given))
        self.link = TableLink(TableStore(self.columns))
        self.mode = MergeRows(self.options, self.load)

    def load(self) -> KeyedMemoryTable:
        assert self.link.store.state is not None
        return KeyedMemoryTable(self.link, self.link.store.state)

    def context(self, epoch: int) -> CommitterInitContext:
        return CommitterInitContext("sink", INCARNATION, 1, epoch, token=TOKEN)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Add a data file of rows, as another epoch did; return its path."""
        files = self._written(self.load().files, rows, KeyOptions())
        self.load().commit(files, self.record())
        return f"{files.directory}/{min(files.names)}"

    def stage(self, *tasks: pa.Table | Sequence[Mapping[str, Any]]) -> EpochFiles:
        """Write the rows of an epoch, one list for each task."""
        layout = self.mode.form(self.load().files)
        return self._written(layout, *tasks, self.options)

    def _written(self, layout: FileLayout, *given: Any) -> EpochFiles:
        *tasks, options = given
        self.epoch += 1
        messages = []
        for attempt, rows in enumerate(tasks):
            context = WriterInitContext("sink", INCARNATION, 1, self.epoch, None, attempt, token=TOKEN)
            writer = TableWriter(layout, context, options, published=self.epoch - 1 if self.epoch > 1 else None)
            batches = rows.to_batches() if isinstance(rows, pa.Table) else [pa.RecordBatch.from_pylist(list(rows))]
            for batch in batches:
                writer.write_record_batch(batch)
            (files,) = writer.prepare_commit()
            writer.close()
            messages.append(CommittableMessage(files, self.epoch, 0))
        (message,) = EpochFiles.gather(messages, overwrite=False)
        return message.value

    def record(self) -> TableRecord:
        context = self.context(self.epoch)
        return TableRecord.first(context).committed(context)

    def merge(self, files: EpochFiles, table: KeyedMemoryTable | None = None) -> dict[str, int]:
        """Merge an epoch into the table; return its counters."""
        context = self.context(self.epoch)
        self.mode.commit(table or self.load(), files, self.record(), context)
        return {name: count for name, count in context.metrics.counts.items() if count}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that a reader finds."""
        return self.link.store.rows()
