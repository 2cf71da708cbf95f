"""`write_mode="upsert"` and `"delete"`: tasks stage rows, and the driver rewrites the data files that have their keys.

```
staged rows ──> one change per key ──> files that may have the keys ──> those that change, rewritten ──> one commit
```

Rewritten files are written, synced and named like those of tasks, in the directory of the epoch. The commit removes
exactly the files of the loaded state that were read: if another writer was first, the merge begins again on the new
state, and the files of the first attempt are removed after the commit.

A format's own merge is not used. deltalake's commits before its files are durable, and its statistics hide rows from
readers, because they ignore NaN and round decimals inward. pyiceberg's holds whole tables in memory.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import OUTPUT_MODES, CommitterInitContext, WriterInitContext
from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.storage.names import AttemptName
from outfall.tables.area import DataArea
from outfall.tables.changes import Flags, Numbers, changes_of
from outfall.tables.data_file import EpochFiles, TaskFiles
from outfall.tables.key_options import KeyOptions
from outfall.tables.keyed import KeyedLayout, KeyedTable, StoredFile
from outfall.tables.record import TableRecord
from outfall.tables.staging import RowsToMerge, StagedLayout, rows_columns
from outfall.tables.stored_rows import StoredRows
from outfall.tables.table import FileLayout, LoadedTable
from outfall.tables.write_mode import WriteMode
from outfall.tables.writer import TableWriter
from outfall.trace_points import reached

log = logging.getLogger(__name__)

_ROWS = 1 << 16
"""Rows of a batch that is inserted."""


class MergeRows(WriteMode):
    """Upserts or deletes by key. The files of tasks never become data files of the table.

    `load` loads the newest state of the table, without checks.
    """

    reads_files = True

    def __init__(self, options: KeyOptions, load: Callable[[], KeyedTable | None]) -> None:
        self._options = options
        self._load = load
        if options.write_mode == "upsert":
            self.output_modes = OUTPUT_MODES

    def columns(self, rows: pa.Schema) -> pa.Schema:
        return rows_columns(self._options, rows)

    def form(self, files: FileLayout) -> FileLayout:
        return StagedLayout.of(cast(KeyedLayout, files), self._options)

    def commit(self, table: LoadedTable, files: EpochFiles, record: TableRecord, context: CommitterInitContext) -> None:
        table = cast(KeyedTable, table)
        everything = self._options.removes_all(files.published)
        if not files.files:
            table.commit(files, record, replace=None if everything else ())
            return
        merge = Merge(self._options, table, files, context)
        try:
            merge.run([] if everything else table.stored(merge.keys))
            merged = merge.finish(check=table.may_lack_files(record))
            reached("table: merged")
            with_merged = files.model_copy(update={"files": merged.files})
            table.commit_merged(with_merged, record, merge.replaced, everything=everything)
        finally:
            # The files of a commit that failed stay: it may have succeeded all the same. `kept` tells later.
            merge.close()
        context.metrics.add_all(merge.counts)

    def written(self, files: EpochFiles, area: DataArea) -> Collection[str]:
        return area.names(files.directory)

    def kept(self, files: EpochFiles) -> Collection[str] | None:
        table, name = self._load(), AttemptName.parse(min(files.names))
        if table is None or name is None:
            return None
        record = table.record(name.incarnation)
        if record is None or record.epoch != name.epoch:
            return None
        return table.merged(record, files.directory)


@dataclass(frozen=True)
class _Matches:
    """The rows of a file that have a key of the epoch, in the order of the file."""

    rows: Numbers
    numbers: Numbers
    """The change of each row."""
    removed: Flags
    updated: Flags

    @property
    def changed(self) -> Flags:
        return self.removed | self.updated


class Merge:
    """One attempt to merge the staged rows of an epoch into one state of the table."""

    def __init__(
        self, options: KeyOptions, table: KeyedTable, files: EpochFiles, context: CommitterInitContext
    ) -> None:
        self._table = table
        self._columns = table.files.columns
        self._area = table.files.area
        self._context = context
        staged = RowsToMerge(table.files.area, files)
        keys = staged.keys(options)
        self.keys = keys.names
        self._order = keys.order
        given = [field for field in self._columns if field.name in set(staged.names) - {keys.marker}]
        self._changes = changes_of(staged.read, pa.schema(given), keys, _Budget(options, context))
        updated = {field.name for field in given} if keys.updated is None else keys.updated
        self._updated = updated - set(keys.names)
        self._present = np.zeros(len(self._changes), np.bool_)
        """Whether a row of the table has the key of a change, after the merge."""
        self._writer = TableWriter(
            table.files.unchecked(), self._writer_context(), options, published=files.published,
            directory=files.directory,
        )  # fmt: skip
        self.replaced: list[StoredFile] = []
        """The data files whose rows are in the new ones."""
        self.counts: Counter[str] = Counter()
        """The counters of the epoch, if this attempt succeeds."""

    def _writer_context(self) -> WriterInitContext:
        """Return an attempt that differs from those of the tasks and of other drivers that merge the same epoch."""
        context = self._context
        return WriterInitContext(
            step_id=context.step_id,
            incarnation=context.incarnation,
            generation=context.generation,
            epoch=context.epoch,
            part=None,
            attempt=1 << 62 | secrets.randbits(62),
            token=context.token,
        )

    def run(self, files: Iterable[StoredFile]) -> None:
        """Rewrite those of these files that change, and insert the rows whose keys none of them has."""
        for file in files:
            rows = self._table.rows(file)
            try:
                matches = self._matches(file, rows)
                if matches is not None:
                    self._present[matches.numbers[~matches.removed]] = True
                    if matches.changed.any():
                        self._rewrite(file, rows, matches)
            finally:
                rows.close()
        self._insert()

    def finish(self, *, check: bool) -> TaskFiles:
        """Make the new files durable, and return them. `check`: whether others may remove files without a version."""
        with self._durably():
            (merged,) = self._writer.prepare_commit()
        missing = list(self._area.damaged(merged.directory, merged.sizes)) if check else ()
        if missing:
            raise TransientError(
                f"{len(missing)} files of this merge are missing, such as {missing[0]}",
                why="another tool has removed them as orphans, because the table does not have them yet",
                do=self._table.orphans,
            )
        self.counts["rows_changed"] = sum(self.counts[f"rows_{what}"] for what in ("inserted", "updated", "deleted"))
        self.counts["files_replaced"] = len(self.replaced)
        return merged

    def close(self) -> None:
        """Release all resources; remove the files of an attempt that did not come to its commit."""
        self._writer.close()

    # --- which rows change

    @cached_property
    def _wanted(self) -> pa.Table:
        """The keys of all changes, with their numbers."""
        keys = self._changes.last.select(list(self.keys)).rename_columns(_plain(len(self.keys)))
        return keys.append_column("number", pa.array(np.arange(len(self._changes))))

    def _matches(self, file: StoredFile, rows: StoredRows) -> _Matches | None:
        """Find the rows with a key of the epoch; `None` if there are none. A NULL in a key equals nothing."""
        may = file.may_have(self._changes.last.select(list(self.keys)))
        wanted = self._wanted if may is None else self._wanted.filter(may)
        if not wanted.num_rows:
            return None
        found, begin = [], 0
        names = [*dict.fromkeys([*self.keys, *([self._order] if self._order else [])])]
        for batch in rows.batches(names):
            here = pa.table([batch.column(name) for name in self.keys], names=_plain(len(self.keys)))
            here = here.append_column("row", pa.array(np.arange(batch.num_rows)))
            pairs = here.join(wanted, _plain(len(self.keys)), join_type="inner").sort_by("row")
            if pairs.num_rows:
                at, numbers = (pairs.column(name).to_numpy().astype(np.int64) for name in ("row", "number"))
                theirs = None if self._order is None else batch.column(self._order).take(pa.array(at))
                found.append(_Matches(at + begin, numbers, *self._outcome(numbers, theirs)))
            begin += batch.num_rows
        if not found:
            return None
        parts = ([getattr(each, name) for each in found] for name in ("rows", "numbers", "removed", "updated"))
        return _Matches(*map(np.concatenate, parts))

    def _outcome(self, numbers: Numbers, theirs: pa.Array | None) -> tuple[Flags, Flags]:
        """Return which of these rows of the table are removed, and which are updated.

        `theirs` are their values of the ordering column. A newer row is kept.
        """
        changes = self._changes
        removed, updated = changes.removes[numbers], ~changes.deleted[numbers]
        if theirs is not None and self._order is not None:
            taken = pa.array(numbers)
            if changes.removal_order is not None:
                removed = removed & _not_newer(theirs, changes.removal_order.take(taken))
            updated = updated & _not_newer(theirs, changes.last.column(self._order).combine_chunks().take(taken))
        return removed, updated & ~removed if self._updated else np.zeros_like(removed)

    # --- new files

    def _rewrite(self, file: StoredFile, rows: StoredRows, matches: _Matches) -> None:
        """Write the rows of a file with their changes."""
        self._table.check_removable(file)
        self.replaced.append(file)
        self.counts["rows_deleted"] += int(matches.removed.sum())
        self.counts["rows_updated"] += int(matches.updated.sum())
        begin = 0
        for batch in rows.batches(self._columns.names):
            low, high = np.searchsorted(matches.rows, (begin, begin + batch.num_rows))
            at, changed = matches.rows[low:high] - begin, matches.changed[low:high]
            untouched = np.ones(batch.num_rows, np.bool_)
            untouched[at[changed]] = False
            self._write(batch if not changed.any() else batch.filter(pa.array(untouched)))
            updated = matches.updated[low:high]
            if updated.any():
                self._write(self._with_updates(batch.take(pa.array(at[updated])), matches.numbers[low:high][updated]))
            begin += batch.num_rows

    def _with_updates(self, rows: pa.RecordBatch, numbers: Numbers) -> pa.RecordBatch:
        """Return rows of the table with the values of their changes."""
        news = self._changes.last.select(sorted(self._updated)).take(pa.array(numbers)).combine_chunks()
        columns = [
            _whole(news.column(name)) if name in self._updated else column
            for name, column in zip(self._columns.names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)

    def _insert(self) -> None:
        """Write the rows whose keys are not in the table, or no longer."""
        numbers = np.flatnonzero(~self._present & ~self._changes.deleted)
        self.counts["rows_inserted"] += len(numbers)
        first = self._changes.first
        for begin in range(0, len(numbers), _ROWS):
            rows = first.take(pa.array(numbers[begin : begin + _ROWS])).combine_chunks()
            columns = [
                _whole(rows.column(field.name)) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
                for field in self._columns
            ]
            self._write(pa.RecordBatch.from_arrays(columns, schema=self._columns))

    def _write(self, rows: pa.RecordBatch) -> None:
        reached("table: merging")
        with self._durably():
            self._writer.write_record_batch(rows)

    @contextmanager
    def _durably(self) -> Iterator[None]:
        """Fail if a disk fails. The commit is retried after transient errors, and a second sync proves nothing."""
        try:
            yield
        except TransientError as error:
            if not self._table.on_disk:
                raise
            raise TargetError(
                error.what,
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=error.why,
                do="check that disk and its free space, and start the query again: the epoch is recorded, and no row is"
                " lost",
            ) from error


def _plain(count: int) -> list[str]:
    """Return names for key columns in joins, where those of the table could clash with others."""
    return [f"key{number}" for number in range(count)]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _not_newer(theirs: pa.Array, ours: pa.Array) -> Flags:
    """Whether rows of the table are not newer than their changes. NULL is the smallest."""
    found: Flags = pc.or_kleene(pc.is_null(theirs), pc.less_equal(theirs, ours)).fill_null(False).to_numpy(False)
    return found


class _Budget:
    """Counts the memory of the changes of an epoch."""

    def __init__(self, options: KeyOptions, context: CommitterInitContext) -> None:
        self._limit = int(options.max_merge_bytes)
        self._context = context
        self._used = 0
        self._warned = False

    def __call__(self, size: int) -> None:
        self._used += size
        context, mebibytes = self._context, self._limit >> 20
        if self._used > self._limit:
            raise ConfigurationError(
                f"the changes of epoch {context.epoch} need more memory than max_merge_bytes ({mebibytes} MiB)",
                why=f"step {context.step_id} merges them on the driver",
                do="raise max_merge_bytes, with three times as much memory for the driver, and start the query again:"
                " the epoch is recorded, and no row is lost; give later epochs fewer rows (maxOffsetsPerTrigger,"
                " maxFilesPerTrigger)",
            )
        if self._used > self._limit // 2 and not self._warned:
            self._warned = True
            log.warning(
                "step %s, epoch %d: its changes need more than half of max_merge_bytes (%d MiB), beyond which no epoch"
                " is written; give epochs fewer rows, or raise it", context.step_id, context.epoch, mebibytes,
            )  # fmt: skip
