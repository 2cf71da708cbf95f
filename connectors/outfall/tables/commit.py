"""Committing an epoch: one compare-and-swap that adds all its files and says so in the table itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import LostCommittableError, TransientError
from outfall.tables.data_file import EpochFiles
from outfall.tables.marker import TableMarker
from outfall.tables.options import TableOptions
from outfall.tables.table import HeadMovedError, LoadedTable, UnclearCommitError, partitions_of
from outfall.tables.target import check_history
from outfall.target_record import behind, check_publishing
from outfall.trace_points import reached

log = logging.getLogger(__name__)

Request = CommitRequest[EpochFiles]
Load = Callable[[], LoadedTable | None]
Once = Callable[[Request, LoadedTable], None]

_TRIES = 5
"""How often a commit is tried anew at once where others commit first; then the engine's pauses come in between."""


class TableCommitter(Committer[EpochFiles]):
    """Adds the files of an epoch to the table, all or none, in one commit with the step's marker.

    ```
    load → already there? → a newer driver's? → rolled back? → do the files fit, and exist? → commit on this very head
      ↑                                                                                              │
      └──────────────── the head has moved, or nobody knows whether the commit took place ───────────┘
    ```

    Assumptions: a commit takes place only on the head that was loaded; what was loaded with that head, marker included,
    is therefore true until the commit. Two drivers that commit one epoch meet there: whoever comes second loads again,
    and finds the epoch.

    What is lost must never be committed later, by a driver that was late: before anything is called lost, a commit
    without files revokes its generation, and moves the head.

    Args:
        load: loads the table; `None` where there is none. Tries once.
        load_patiently: the same, and tries again after errors that may pass.
        context: whose epoch it is.
        options: the sink's.
    """

    strict = True

    def __init__(self, load: Load, load_patiently: Load, context: CommitterInitContext, options: TableOptions) -> None:
        self._load = load
        self._load_patiently = load_patiently
        self._context = context
        self._options = options

    def commit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                # Tried once, since the engine tries again, and knows for how long.
                reason = self._until_settled(request, self._commit_once, self._load)
            except TransientError as error:
                reason = str(error)
            if reason is not None:
                request.retry_later(reason)

    def find_lost(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._settle(request, self._look_once)

    def revoke(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._settle(request, self._revoke_once)

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        """Tell by the marker: an epoch whose generation is revoked is not there, and never will be."""
        table = self._load_patiently()
        if table is None:
            return True
        found = table.marker(self._context.incarnation)
        if any(request.committable.layout.table != table.files.layout.table for request in requests):
            return found is None
        return found is not None and found.epoch < self._context.epoch and found.revoked >= self._context.generation

    def _settle(self, request: Request, once: Once) -> None:
        reason = self._until_settled(request, once, self._load_patiently)
        if reason is not None:
            raise TransientError(
                "what is recorded of this epoch could not be settled",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=reason,
                do="start the query again",
            )

    def _until_settled(self, request: Request, once: Once, load: Load) -> str | None:
        """Try until the head that was loaded is the head that was replaced.

        Returns:
            Why that did not come about; `None` where it did.

        Raises:
            FencedError: a newer driver, or that of another copy of the recovery data, has committed.
            TargetLostError: the table was rolled back, or what it said of the step is gone.
            TransientError: the table cannot be asked.
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
                reason = f"the response to a commit does not tell whether it took place: {error}"
                log.info("step %s, epoch %d: %s", self._context.step_id, self._context.epoch, reason)
            else:
                return None
            reached("table: loading anew")
        return reason

    def _commit_once(self, request: Request, table: LoadedTable) -> None:
        files, found = request.committable, self._marker(request, table)
        if found is not None and found.epoch >= self._context.epoch:
            request.signal_already_committed()
            return
        lost = self._lost(table, files, found)
        if lost is not None:
            self._give_up(table, request, found, lost)
            return
        reached("table: committing")
        started = time.monotonic()
        table.commit(
            files, (found or TableMarker.first(self._context)).committed(self._context), replace=self._replaced(files)
        )
        reached("table: committed")
        log.info(
            "step %s, epoch %d: %s committed to %s in %.3f s",
            self._context.step_id, self._context.epoch, files, table.where, time.monotonic() - started,
        )  # fmt: skip
        request.signal_committed()

    def _look_once(self, request: Request, table: LoadedTable) -> None:
        found = self._marker(request, table)
        # Another driver may have committed it meanwhile, and others may have rewritten its files since.
        if found is None or found.epoch < self._context.epoch:
            lost = self._lost(table, request.committable, found)
            if lost is not None:
                self._give_up(table, request, found, lost)

    def _revoke_once(self, request: Request, table: LoadedTable) -> None:
        found = self._marker(request, table)
        if found is not None and found.epoch >= self._context.epoch:
            raise LostCommittableError(
                f"epoch {self._context.epoch} is in {table.where} already and cannot be revoked",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="start the query again: what the table says settles it",
            )
        self._revoke(table, request.committable, found)

    def _give_up(self, table: LoadedTable, request: Request, found: TableMarker | None, reason: str) -> None:
        self._revoke(table, request.committable, found)
        request.signal_lost(reason)

    def _revoke(self, table: LoadedTable, files: EpochFiles, found: TableMarker | None) -> None:
        """See to it that nobody commits these files any more. A table that was made anew takes them from nobody."""
        revoked = found is not None and found.revoked >= self._context.generation
        if revoked or files.layout.table != table.files.layout.table:
            return
        reached("table: revoking")
        marker = (found or TableMarker.first(self._context)).without(self._context.generation)
        table.commit(files.without_files(), marker)
        reached("table: revoked")

    def _marker(self, request: Request, table: LoadedTable) -> TableMarker | None:
        """Return what the table says of the step, if that leaves this driver and the epoch room.

        Raises:
            FencedError, TargetLostError: see `_until_settled`.
        """
        context, files = self._context, request.committable
        found = table.marker(context.incarnation)
        if found is not None:
            check_publishing(table.where, found.record_among(context.begun), context)
            check_history(table, found, files.published, context)
            if found.epoch >= context.epoch and found.generation != context.generation:
                raise behind(
                    table.where,
                    f"it has epoch {found.epoch} as generation {found.generation} wrote it, which was given up",
                    step=context.step_id,
                    epoch=context.epoch,
                )
        elif files.layout.table == table.files.layout.table:
            epoch = self._known_epoch(table, files)
            if epoch is not None:
                raise behind(
                    table.where,
                    f"it says nothing of this step (incarnation {context.incarnation}), whose epoch {epoch} was"
                    " committed to it",
                    step=context.step_id,
                    epoch=context.epoch,
                )
        return found

    def _known_epoch(self, table: LoadedTable, files: EpochFiles) -> int | None:
        """Return which epoch was committed to a table that says nothing of the step; `None` where none is known of.

        The log knows of the epochs before. Of this one the table's snapshots do: an earlier driver may have committed
        it before the marker was removed. They are asked only when this is the step's first, and somebody else's.
        """
        if files.published is not None or files.is_fresh():
            return files.published
        area = table.files.area
        return self._context.epoch if table.named({area.path(files.directory, name) for name in files.names}) else None

    def _lost(self, table: LoadedTable, files: EpochFiles, found: TableMarker | None) -> str | None:
        """Say why the files cannot be committed any more; `None` where they can."""
        if found is not None and found.revoked >= self._context.generation:
            return "a driver has found some of it lost before, and revoked it"
        misfit = files.layout.misfit(table.files.layout)
        if misfit is not None:
            return f"{files} do not fit into {table.where} any more: {misfit}"
        area = table.files.area
        if files.files and area.root != files.root:
            return f"{files} lie in {files.root}, and the table's data now in {area.root}"
        if files.is_fresh():
            return None
        try:
            missing = area.missing(files.directory, files.names)
        except OSError as error:
            raise TransientError(
                f"the data files in {area.root}/{files.directory} could not be looked at",
                why=f"{type(error).__name__}: {error}",
                do="see that the store is reachable from the driver",
            ) from error
        if missing:
            return f"{len(missing)} of {files} are gone, as {missing[0]}: another tool may have removed them as orphans"
        return None

    def _replaced(self, files: EpochFiles) -> Collection[tuple[str | None, ...]] | None:
        if self._options.on_existing == "overwrite" and files.published is None:
            return None
        if self._options.write_mode == "append":
            return ()
        replaced = partitions_of(files.files)
        return None if () in replaced else replaced
