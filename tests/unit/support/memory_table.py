"""A table format in memory: a catalogue that swaps heads, commits whose answers are lost, and other writers.

As with Iceberg a commit asserts the table's id and its head, and nothing else. What it adds it adds by the table as it
was loaded, whatever others have made of columns and partitioning since.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

from outfall.capabilities import CommittableMessage
from outfall.errors import ConfigurationError, TransientError
from outfall.tables.area import DataArea, NewFile
from outfall.tables.data_file import EpochFiles, Layout, TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.record import TableRecord
from outfall.tables.sink import TableSink
from outfall.tables.table import FileLayout, HeadMovedError, LoadedTable, UnclearCommitError
from outfall.testing import ByReference

Pause = Callable[[], None]
Partition = tuple[str | None, ...]

FIELD_ID = b"PARQUET:field_id"
TYPES = {"int64": pa.int64(), "string": pa.string(), "double": pa.float64()}


@dataclass(frozen=True)
class DataEntry:
    """A data file as a snapshot names it."""

    path: str
    partition: Partition
    spec: tuple[int, ...] = ()
    """The field ids of the columns by which it was added."""
    rows: tuple[Mapping[str, Any], ...] | None = None
    """Of a file that another writer made: there is no such file."""


@dataclass(frozen=True)
class TableSnapshot:
    id: int
    order: int
    parent: int
    entries: tuple[DataEntry, ...]
    """One that was added twice is there twice."""


NOTHING = TableSnapshot(0, 0, 0, ())


@dataclass(frozen=True)
class TableState:
    """The metadata. It never changes; the catalogue points to another one."""

    uuid: str
    columns: Mapping[str, tuple[int, str]]
    """Field id and type."""
    spec: tuple[str, ...] = ()
    spec_id: int = 0
    last_column: int = 0
    head: int = 0
    order: int = 0
    """The highest that a snapshot ever had."""
    snapshots: Mapping[int, TableSnapshot] = field(default_factory=dict)
    records: Mapping[str, TableRecord] = field(default_factory=dict)

    @property
    def current(self) -> TableSnapshot:
        return self.snapshots.get(self.head, NOTHING)


class TableStore(ByReference):
    """One table's catalogue and files. What others do to it are its methods."""

    def __init__(self, columns: Mapping[str, str] | None = None, spec: Sequence[str] = ()) -> None:
        self.name = uuid.uuid4().hex
        self.files = MemoryFileSystem(skip_instance_cache=True)
        self.late: list[tuple[str, Callable[[], None]]] = []
        """Commits that may still take place, each with its directory."""
        self.history: list[TableSnapshot] = []
        """Every snapshot that ever was the head."""
        self.links: list[TableLink] = []
        self._ids = itertools.count(1)
        self._read: dict[str, list[dict[int, Any]]] = {}
        self.state: TableState | None = None
        self._newest: TableState | None = None
        """The table as the last commit left it, be it dropped since."""
        self.create(columns or {"id": "int64", "text": "string"}, spec)

    # --- what the catalogue does

    def create(self, columns: Mapping[str, str], spec: Sequence[str] = ()) -> None:
        """Make the table, unless it is there."""
        if self.state is None:
            numbered = {name: (number, kind) for number, (name, kind) in enumerate(columns.items(), 1)}
            self.state = TableState(uuid.uuid4().hex, numbered, tuple(spec), last_column=len(numbered))

    def swap(self, loaded: TableState, entries: Iterable[DataEntry], **changed: Any) -> None:
        """Make a snapshot the head, if the head is as it was loaded.

        Args:
            loaded: the table as it was loaded.
            entries: all that the snapshot names.
            changed: what else changes; a function is given the new snapshot and the table as it is.
        """
        now = self.state
        if now is None or (now.uuid, now.head) != (loaded.uuid, loaded.head):
            raise HeadMovedError
        made = TableSnapshot(next(self._ids), now.order + 1, now.head, tuple(entries))
        more = {name: change(made, now) for name, change in changed.items()}
        self.state = replace(now, head=made.id, order=made.order, snapshots={**now.snapshots, made.id: made}, **more)
        self.history.append(made)
        self._newest = self.state

    def arrive(self) -> None:
        """Let the oldest late commit take place, if its head is still there."""
        self.late.pop(0)[1]()

    # --- what other writers do

    def _now(self) -> TableState:
        assert self.state is not None
        return self.state

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows of another writer."""
        now = self._now()
        added = [
            DataEntry(f"others/{uuid.uuid4().hex}", _texts(row.get(name) for name in now.spec), rows=(row,))
            for row in rows
        ]
        self.swap(now, [*now.current.entries, *added])

    def compact(self) -> None:
        """Rewrite all files, ours too."""
        now = self._now()
        rewritten = [
            replace(entry, path=f"compacted/{uuid.uuid4().hex}", rows=tuple(self.rows_of(entry)))
            for entry in now.current.entries
        ]
        self.swap(now, rewritten)

    def expire(self) -> None:
        """Forget every snapshot but the head."""
        now = self._now()
        kept = {now.head: now.current} if now.head else {}
        self.state = replace(now, snapshots=kept)

    def add_column(self, name: str, kind: str) -> None:
        now = self._now()
        number = now.last_column + 1
        self.state = replace(now, columns={**now.columns, name: (number, kind)}, last_column=number)

    def drop_column(self, name: str) -> None:
        now = self._now()
        self.state = replace(now, columns={other: found for other, found in now.columns.items() if other != name})

    def partition_by(self, *names: str) -> None:
        now = self._now()
        self.state = replace(now, spec=names, spec_id=now.spec_id + 1)

    def rollback(self, steps: int = 1) -> None:
        """Make an older snapshot the head. Properties stay as they are."""
        now, head = self._now(), self._now().head
        for _ in range(steps):
            head = now.snapshots.get(head, NOTHING).parent
        self.state = replace(now, head=head if head in now.snapshots else 0)

    def remove_record(self) -> None:
        """Remove what the table says of all steps."""
        self.state = replace(self._now(), records={})

    def drop(self) -> None:
        """Drop the table; its files stay."""
        self.state = None

    def undrop(self) -> None:
        """Restore the table as the last commit left it."""
        self.state = self._newest

    def remove_orphans(self) -> None:
        """Remove files that no snapshot names, but for those that somebody has just looked at for a commit.

        That time is what tools give by an age below which they spare files.
        """
        named = self.named_paths()
        looked = {link.looking for link in self.links} | {directory for directory, _ in self.late}
        for path in self.paths():
            if path not in named and path.rpartition("/")[0] not in looked:
                self.delete(path)

    def delete(self, path: str) -> None:
        self.files.rm_file(f"/{self.name}/{path}")

    # --- what there is, found without the code under test

    def paths(self) -> list[str]:
        """All data files that lie there, below the root."""
        begin = f"/{self.name}/"
        return [path.removeprefix(begin) for path in self.files.store if path.startswith(begin)]

    def named_paths(self) -> set[str]:
        """All files that a snapshot names, and that are not made up."""
        found = self.state.snapshots.values() if self.state else ()
        entries = (entry for snapshot in found for entry in snapshot.entries)
        return {entry.path for entry in entries if entry.rows is None}

    def rows(self, snapshot: TableSnapshot | None = None) -> list[dict[str, Any]]:
        """What a reader of a snapshot finds, by default of the head."""
        found = self._now().current if snapshot is None else snapshot
        return [row for entry in found.entries for row in self.rows_of(entry)]

    def rows_of(self, entry: DataEntry) -> list[dict[str, Any]]:
        """Read one file as the table's columns are now, by their field ids."""
        state = self.state or self._newest
        assert state is not None
        columns = state.columns
        if entry.rows is not None:
            return [dict(row) for row in entry.rows]
        found = self._content(entry.path)
        partitions = {_texts(row.get(number) for number in entry.spec) for row in found}
        assert partitions <= {entry.partition}, "a row lies in another partition"
        return [{name: row.get(number) for name, (number, _) in columns.items()} for row in found]

    def _content(self, path: str) -> list[dict[int, Any]]:
        if path not in self._read:
            with self.files.open(f"/{self.name}/{path}") as file:
                table = pq.read_table(pa.BufferReader(file.read()))
            numbers = [int(column.metadata[FIELD_ID]) for column in table.schema]
            self._read[path] = [dict(zip(numbers, row.values(), strict=True)) for row in table.to_pylist()]
        return self._read[path]


class TableLink(ByReference):
    """The store as one process sees it."""

    def __init__(self, store: TableStore, pause: Pause = lambda: None, fates: Iterable[str] = ()) -> None:
        """Connect.

        Args:
            store: the table.
            pause: is called before everything that others could come before.
            fates: of each commit in turn: `""` takes place, `"lost"` does not and `"landed"` does, and nobody hears of
                it, `"late"` may take place later.
        """
        self.store = store
        self.pause = pause
        self.fates = list(fates)
        self.gone = False
        """Whether nothing answers."""
        self.recorded_by: str | None = "another process"
        """Who is said to have recorded an epoch: another process, so that files are looked at; `None` for the truth."""

        self.looking = ""
        """The directory whose files were looked at for a commit that comes next."""
        store.links.append(self)

    def ask(self) -> TableStore:
        """Return the store, if it answers."""
        self.pause()
        if self.gone:
            raise TransientError("the catalogue does not answer")
        return self.store

    def area(self) -> MemoryArea:
        """Return where the files are, for this process."""
        return MemoryArea(f"memory:{self.store.name}", self.open, link=self)

    def open(self) -> tuple[pafs.FileSystem, str]:
        return pafs.PyFileSystem(pafs.FSSpecHandler(self.store.files)), f"/{self.store.name}"


@dataclass(frozen=True)
class MemoryArea(DataArea):
    """Where the files are, with a pause before each use."""

    link: TableLink = field(kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "link": self.link}

    def create(self, directory: str, name: str) -> NewFile:
        self._ask()
        return super().create(directory, name)

    def damaged(self, directory: str, sizes: Mapping[str, int]) -> dict[str, int | None]:
        self._ask()
        self.link.looking = directory
        return super().damaged(directory, sizes)

    def names(self, directory: str) -> list[str]:
        self._ask()
        return super().names(directory)

    def begun(self, incarnation: str, mark: str = "") -> Iterator[tuple[int, str]]:
        self._ask()
        return super().begun(incarnation, mark)

    def delete(self, directory: str, names: Collection[str]) -> None:
        for name in names:
            self._ask()
            super().delete(directory, [name])

    def _ask(self) -> None:
        self.link.pause()
        if self.link.gone:
            raise OSError("the store does not answer")


class MemoryLayout(FileLayout):
    """What the table's files must be like."""

    codec = "none"
    target_size = 1 << 20

    def __init__(self, link: TableLink, state: TableState) -> None:
        self._link = link
        self.area = link.area()
        self.layout = Layout(
            table=state.uuid,
            partitioning=f"{state.spec_id}: {', '.join(state.spec)}",
            columns={str(number): kind for number, kind in state.columns.values()},
        )
        self._columns = dict(state.columns)
        self._spec = state.spec

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        by_name = {name.lower(): name for name in self._columns}
        strange = [name for name in rows.names if name.lower() not in by_name]
        lacking = [name for name in self._spec if name not in rows.names]
        if strange or lacking:
            raise ConfigurationError(f"the table has no columns {strange}, and is partitioned by {lacking}")
        given = {name.lower() for name in rows.names}
        return pa.schema(
            [
                pa.field(name, TYPES[kind], metadata={FIELD_ID: str(number)})
                for name, (number, kind) in self._columns.items()
                if name.lower() in given
            ]
        )

    def partition(self, batch: pa.RecordBatch) -> Sequence[pa.Array]:
        return [batch.column(name) for name in self._spec]

    def partition_text(self, values: Sequence[Any]) -> Partition:
        return _texts(values)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def statistics(self, written: pq.FileMetaData, schema: pa.Schema) -> Mapping[str, Any]:
        return {"columns": written.num_columns}


class MemoryTable(LoadedTable):
    """The table as it was loaded once."""

    def __init__(self, link: TableLink, state: TableState) -> None:
        self.where = f"the table {link.store.name}"
        self._link = link
        self._state = state

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([(name, TYPES[kind]) for name, (_, kind) in self._state.columns.items()])

    @property
    def files(self) -> MemoryLayout:
        return MemoryLayout(self._link, self._state)

    def with_columns(self, rows: pa.Schema) -> MemoryLayout:
        return MemoryLayout(self._link, _with_columns(self._state, rows))

    def add_columns(self, rows: pa.Schema) -> None:
        store = self._link.ask()
        if store.state is not None:
            store.state = _with_columns(store.state, rows)

    def record(self, incarnation: str) -> TableRecord | None:
        return self._state.records.get(incarnation)

    def records(self, step: str) -> Iterable[TableRecord]:
        return [record for record in self._state.records.values() if record.step == step]

    def left_out(self, record: TableRecord) -> str | None:
        snapshots, at = self._state.snapshots, self._state.head
        while at in snapshots and snapshots[at].order > record.order:
            at = snapshots[at].parent
        expired = at not in snapshots and record.head not in snapshots and self._state.current.order > record.order
        return None if at == record.head or expired else f"it was rolled back behind snapshot {record.head}"

    def has_rows(self) -> bool:
        return bool(self._state.current.entries)

    def never_had_rows(self) -> bool:
        snapshots = self._state.snapshots.values()
        return self._state.order == len(snapshots) and not any(each.entries for each in snapshots)

    def commit(
        self, files: EpochFiles, record: TableRecord, *, replace: Collection[Partition] | None = ()
    ) -> LoadedTable:
        loaded = self._state
        kept = [entry for entry in loaded.current.entries if replace is not None and entry.partition not in replace]
        return self._commit(files, record, kept)

    def _commit(self, files: EpochFiles, record: TableRecord, kept: Sequence[DataEntry]) -> LoadedTable:
        store, loaded = self._link.ask(), self._state
        spec = tuple(loaded.columns[name][0] for name in loaded.spec)
        added = [DataEntry(f"{files.directory}/{file.name}", file.partition, spec) for file in files.files]

        def mark(made: TableSnapshot, now: TableState) -> Mapping[str, TableRecord]:
            written = record.model_copy(update={"head": made.id, "order": made.order})
            return {**now.records, record.incarnation: written}

        def land() -> None:
            store.swap(loaded, [*kept, *added], records=mark)

        fate = self._link.fates.pop(0) if self._link.fates else ""
        self._link.looking = ""
        if fate == "late":
            store.late.append((files.directory, lambda: _try(land)))
        elif fate == "landed":
            _try(land)
        elif not fate:
            land()
        if fate:
            raise UnclearCommitError("the answer was lost")
        assert store.state is not None
        return MemoryTable(self._link, store.state)

    def forget(self, incarnation: str) -> None:
        store = self._link.ask()
        if store.state is not None:
            kept = {name: record for name, record in store.state.records.items() if name != incarnation}
            store.state = replace(store.state, records=kept)

    def named(self, candidates: Collection[str]) -> Collection[str]:
        root = f"memory:{self._link.store.name}"
        entries = (entry for snapshot in self._state.snapshots.values() for entry in snapshot.entries)
        return {f"{root}/{entry.path}" for entry in entries}.intersection(candidates)


class MemoryTableSink(TableSink):
    """Writes into a table in memory."""

    def __init__(self, link: TableLink, **options: Any) -> None:
        self.link = link
        self.options = TableOptions(**{"retry_deadline": 0.001, **options})

    def open_as(self, other: MemoryTableSink) -> None:
        """Know what another process has opened, as its tasks do on another host."""
        if other._opened is not None:
            layout = copy.copy(other._opened.layout)
            layout.area = self.link.area()
            self._opened = replace(other._opened, layout=layout)

    def target(self) -> str:
        return f"memory table {self.link.store.name}"

    def load(self) -> LoadedTable | None:
        state = self.link.ask().state
        self.link.looking = ""
        return None if state is None else MemoryTable(self.link, state)

    def check_new(self, rows: pa.Schema) -> None:
        _kinds(rows)

    def create(self, rows: pa.Schema) -> None:
        self.link.ask().create(_kinds(rows), self.options.partition_by)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[TaskFiles]]
    ) -> Sequence[CommittableMessage[EpochFiles]]:
        gathered, other = super().add_pre_commit_topology(results), self.link.recorded_by
        if other is None:
            return gathered
        return [replace(message, value=message.value.model_copy(update={"recorded_by": other})) for message in gathered]


def _texts(values: Iterable[Any]) -> Partition:
    return tuple(None if value is None else str(value) for value in values)


def _kinds(rows: pa.Schema) -> dict[str, str]:
    return {column.name: str(column.type) for column in rows}


def _with_columns(state: TableState, rows: pa.Schema) -> TableState:
    new = {name: kind for name, kind in _kinds(rows).items() if name not in state.columns}
    numbered = {name: (number, kind) for number, (name, kind) in enumerate(new.items(), state.last_column + 1)}
    return replace(state, columns={**state.columns, **numbered}, last_column=state.last_column + len(new))


def _try(land: Callable[[], None]) -> None:
    with suppress(HeadMovedError):
        land()
