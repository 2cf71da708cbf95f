"""Commits an epoch: one compare-and-swap that adds all its files and writes the record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import LostCommittableError, TransientError
from outfall.store_errors import Operation, explained
from outfall.tables.area import DataArea
from outfall.tables.data_file import EpochFiles
from outfall.tables.record import TableRecord
from outfall.tables.table import HeadMovedError, LoadedTable, UnclearCommitError
from outfall.tables.target import check_history
from outfall.tables.write_mode import WriteMode
from outfall.target_record import behind, check_publishing
from outfall.trace_points import reached

log = logging.getLogger(__name__)

Request = CommitRequest[EpochFiles]
Load = Callable[[], LoadedTable | None]
Once = Callable[[Request, LoadedTable], None]

_TRIES = 5
"""Number of immediate retries after concurrent commits; then the engine's pauses apply."""


class TableCommitter(Committer[EpochFiles]):
    """Puts the rows of an epoch into the table, all or none, in one commit with the step's record.

    ```
    load → already committed? → newer driver? → rolled back? → do the files fit, and exist? → commit on this head
      ↑                                                                                            │
      └──────────────────── the head has moved, or the outcome is unknown ─────────────────────────┘
    ```

    Assumption: a commit succeeds only on the head that was loaded. The state loaded with that head, including the
    record, is therefore current until the commit. If two drivers commit the same epoch, the second one loads again and
    finds the epoch.

    Lost files must never be committed later by an old driver. Before the committer reports data as lost, a commit
    without files revokes its generation and moves the head.

    `load` works without retries, `load_patiently` with retries after transient errors. Both return `None` if the table
    does not exist.
    """

    strict = True

    def __init__(self, load: Load, load_patiently: Load, context: CommitterInitContext, mode: WriteMode) -> None:
        self._load = load
        self._load_patiently = load_patiently
        self._context = context
        self._mode = mode

    def commit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                # Without retries, because the engine retries and has the deadline.
                reason = self._until_settled(request, self._commit_once, self._load)
            except TransientError as error:
                reason = str(error)
            if reason is not None:
                request.retry_later(reason)

    def find_lost(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._resolve(request, self._look_once)

    def revoke(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._resolve(request, self._revoke_once)

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        """Decide by the record: an epoch with a revoked generation is not in the table, and never will be."""
        table = self._load_patiently()
        if table is None:
            return True
        found = table.record(self._context.incarnation)
        if any(request.committable.layout.table != table.files.layout.table for request in requests):
            return found is None
        return found is not None and found.epoch < self._context.epoch and found.revoked >= self._context.generation

    def is_unpublished(self) -> bool:
        """Return whether the epoch is not in the table now. It may be committed until its files are revoked."""
        table = self._load_patiently()
        found = None if table is None else table.record(self._context.incarnation)
        return found is None or found.epoch < self._context.epoch

    def _resolve(self, request: Request, once: Once) -> None:
        reason = self._until_settled(request, once, self._load_patiently)
        if reason is not None:
            raise TransientError(
                "the recorded state of this epoch could not be resolved",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=reason,
                do="start the query again",
            )

    def _until_settled(self, request: Request, once: Once, load: Load) -> str | None:
        """Repeat until the loaded head is the head that was replaced.

        Returns the reason for a failure; `None` after success. Raises `FencedError` if a newer driver, or a driver with
        another copy of the recovery data, has committed, `TargetLostError` if the table was rolled back or its record
        is missing, and `TransientError` if the table cannot be read.
        """
        reason = ""
        for _ in range(_TRIES):
            table = load()
            if table is None:
                request.signal_lost(f"{request.committable} cannot be committed: the table was dropped")
                return None
            try:
                once(request, table)
            except HeadMovedError:
                reason = "other writers committed first"
            except UnclearCommitError as error:
                reason = f"the outcome of a commit is unknown: {error}"
                log.info("step %s, epoch %d: %s", self._context.step_id, self._context.epoch, reason)
            else:
                return None
            reached("table: loading anew")
        return reason

    def _commit_once(self, request: Request, table: LoadedTable) -> None:
        files, found = request.committable, self._record(request, table)
        if found is not None and found.epoch >= self._context.epoch:
            request.signal_already_committed()
            return
        lost = self._lost(table, files, found)
        if lost is not None:
            self._give_up(table, request, found, lost)
            return
        reached("table: committing")
        started = time.monotonic()
        record = (found or TableRecord.first(self._context)).committed(self._context)
        self._mode.commit(table, files, record, self._context)
        reached("table: committed")
        log.info(
            "step %s, epoch %d: %s committed to %s in %.3f s",
            self._context.step_id, self._context.epoch, files, table.where, time.monotonic() - started,
        )  # fmt: skip
        request.signal_committed()

    def _look_once(self, request: Request, table: LoadedTable) -> None:
        found = self._record(request, table)
        # Another driver may have committed it meanwhile, and other writers may have rewritten its files since.
        if found is None or found.epoch < self._context.epoch:
            lost = self._lost(table, request.committable, found)
            if lost is not None:
                self._give_up(table, request, found, lost)

    def _revoke_once(self, request: Request, table: LoadedTable) -> None:
        found = self._record(request, table)
        if found is not None and found.epoch >= self._context.epoch:
            raise LostCommittableError(
                f"epoch {self._context.epoch} is already in {table.where} and cannot be revoked",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="start the query again: it reads the table's record and resolves the epoch",
            )
        self._revoke(table, request.committable, found)

    def _give_up(self, table: LoadedTable, request: Request, found: TableRecord | None, reason: str) -> None:
        self._revoke(table, request.committable, found)
        request.signal_lost(reason)

    def _revoke(self, table: LoadedTable, files: EpochFiles, found: TableRecord | None) -> None:
        """Prevent any later commit of these files. A recreated table accepts them from no driver."""
        revoked = found is not None and found.revoked >= self._context.generation
        if revoked or files.layout.table != table.files.layout.table:
            return
        reached("table: revoking")
        record = (found or TableRecord.first(self._context)).without(self._context.generation)
        table.commit(files.without_files(), record)
        reached("table: revoked")

    def _record(self, request: Request, table: LoadedTable) -> TableRecord | None:
        """Return the table's record of the step, if it permits this driver and epoch to commit.

        Raises `FencedError` and `TargetLostError` like `_until_settled`.
        """
        context, files = self._context, request.committable
        found = table.record(context.incarnation)
        if found is not None:
            check_publishing(table.where, found.record_among(context.begun), context)
            check_history(table, found, files.published, context)
            if found.epoch >= context.epoch and found.generation != context.generation:
                raise behind(
                    table.where,
                    f"it has epoch {found.epoch} as written by generation {found.generation}, which was abandoned",
                    step=context.step_id,
                    epoch=context.epoch,
                )
        elif files.layout.table == table.files.layout.table:
            epoch = self._known_epoch(table, files)
            if epoch is not None:
                raise behind(
                    table.where,
                    f"it has no record of this step (incarnation {context.incarnation}), whose epoch {epoch} was"
                    " committed to it",
                    step=context.step_id,
                    epoch=context.epoch,
                )
        return found

    def _known_epoch(self, table: LoadedTable, files: EpochFiles) -> int | None:
        """Return an epoch that was committed to a table without a record of the step; `None` if there is none.

        The log has the earlier epochs. For this epoch, the table's snapshots are checked: an earlier driver may have
        committed it before the record was removed. This check runs only for the step's first epoch, recorded by another
        process.
        """
        if files.published is not None or files.is_fresh():
            return files.published
        area = table.files.area
        with _checking(area, files):
            names = self._mode.written(files, area)
        return self._context.epoch if table.named({area.path(files.directory, name) for name in names}) else None

    def _lost(self, table: LoadedTable, files: EpochFiles, found: TableRecord | None) -> str | None:
        """Return why the files can no longer be committed; `None` if they can."""
        if found is not None and found.revoked >= self._context.generation:
            return "another driver found that data of this generation was lost, and revoked it"
        mismatch = files.layout.mismatch(self._mode.form(table.files).layout)
        if mismatch is not None:
            return f"{files} no longer fit {table.where}: {mismatch}"
        area = table.files.area
        if files.files and area.root != files.root:
            return f"{files} are in {files.root}, and the table's data is now in {area.root}"
        unread = files.is_fresh() and not self._mode.reads_files and not table.may_lack_files(found)
        with _checking(area, files):
            # On a disk it costs next to nothing, and a disk may lose a part of a file.
            damaged = {} if unread and not area.is_disk else area.damaged(files.directory, files.sizes)
        return _told(files, damaged) if damaged else None


def _told(files: EpochFiles, damaged: Mapping[str, int | None]) -> str:
    """Describe files whose lengths differ from the recorded ones."""
    missing = [name for name, size in damaged.items() if size is None]
    if missing:
        return f"{len(missing)} of {files} are missing, such as {missing[0]}: another tool may have removed orphans"
    name, size = next(iter(damaged.items()))
    return (
        f"{len(damaged)} of {files} have other lengths than recorded, such as {name}: it has {size} bytes, and"
        f" {files.sizes[name]} were recorded. The disk lost a part of it, or another program has changed it"
    )


@contextmanager
def _checking(area: DataArea, files: EpochFiles) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explained(
            error,
            f"the data files in {area.root}/{files.directory} could not be checked",
            url=area.root,
            operation=Operation.READ,
            do="check that the store is reachable from the driver, then start the query again: no rows are lost",
        ) from error
