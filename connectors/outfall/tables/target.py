"""The table as the recovery data has it: checked before an epoch begins, cleaned up after failed attempts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from outfall.capabilities import CleanUpContext, CommitterInitContext, TargetContext
from outfall.errors import TargetLostError, TargetNotEmptyError
from outfall.existing import Existing
from outfall.possession.possession import FoundRecord, TargetPort
from outfall.possession.record import RESTORE
from outfall.storage.names import AttemptName
from outfall.tables.area import DataArea, directory_of
from outfall.tables.data_file import EpochFiles
from outfall.tables.record import TableRecord
from outfall.tables.table import HeadMovedError, LoadedTable, UnclearCommitError
from outfall.target_record import TargetRecord, behind
from outfall.trace_points import reached

_TRIES = 5
"""Number of attempts at a commit without rows after concurrent commits."""


class TablePort(TargetPort[TableRecord]):
    """The table of one step, which may not exist: then `table` is `None`. `where` names it in texts.

    The commit of an epoch writes the record, on the head that was loaded.
    """

    ahead = "restore the newest recovery data; or compare the table with the source, and start with a new checkpoint"
    locks = True

    def __init__(
        self, where: str, table: LoadedTable | None, incarnation: str, existing: Existing, *, one_of_many: bool = False
    ) -> None:
        self.where = where
        self._table = table
        self._incarnation = incarnation
        self._existing = existing
        self._one_of_many = one_of_many

    def read(self) -> FoundRecord[TableRecord] | None:
        record = None if self._table is None else self._table.record(self._incarnation)
        return None if record is None else FoundRecord(record)

    def written(self, context: TargetContext[Any]) -> int | None:
        return context.published

    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        what = "does not exist"
        if self._table is not None:
            what = f"has no record of this step (incarnation {context.incarnation})"
        return TargetLostError(
            f"{self.where} {what}, and epoch {epoch} was committed to it",
            step=context.step_id,
            epoch=context.epoch,
            why="it was dropped, renamed, recreated, or restored from an older copy, or its properties were removed",
            do="restore it, or rename it back, and start the query again; or create it without rows before, if its rows"
            " are not wanted any more"
            if self._one_of_many
            else RESTORE,
        )

    def records(
        self, found: FoundRecord[TableRecord], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        return [found.stored.record_among(context.begun)]

    def check_data(self, found: FoundRecord[TableRecord] | None, context: TargetContext[Any]) -> None:
        if self._table is not None and found is not None:
            check_history(self._table, found.stored, context.published, context)

    def check_existing(self, context: TargetContext[Any]) -> None:
        if self._table is not None:
            _check_existing(self.where, self._table, context.step_id, self._existing)


def check_history(
    table: LoadedTable,
    found: TableRecord,
    published: int | None,
    context: TargetContext[Any] | CommitterInitContext,
) -> None:
    """Raise `TargetLostError` for a table from which data of the step was rolled back after its commit.

    `found` is its record of the step, and `published` the newest epoch in the table, as recorded when the epoch began.
    `context` is of the epoch that begins or is to be committed.
    """
    problem = table.left_out(found) if found.epoch >= 0 else None
    if problem is None and not found.goes_before(published, context.begun):
        problem = f"its last epoch of this step is {found.epoch}, and epoch {published} was committed"
    if problem is not None:
        raise behind(table.where, problem, step=context.step_id, epoch=context.epoch)


def _check_existing(where: str, table: LoadedTable, step_id: str, existing: Existing) -> None:
    """Reject, on the first run, a table that `on_existing` does not permit."""
    if existing.own != "reject":
        return
    for other in table.records(step_id):
        if other.epoch >= 0:
            raise TargetNotEmptyError(
                f"{where} has rows that this step wrote",
                step=step_id,
                why=f"the table has a record of its incarnation {other.incarnation}, up to epoch {other.epoch},"
                " which this checkpoint does not have",
                do='continue with the checkpoint that wrote them, or set on_existing="resume" if none of their rows are'
                ' replayed, or on_existing="overwrite" to remove all rows of the table',
            )
    if existing.others == "reject" and table.has_rows():
        raise TargetNotEmptyError(
            f"{where} is not empty",
            step=step_id,
            why='on_existing="error" is set, and readers see rows',
            do='name another table, or set on_existing="resume" to keep the rows or on_existing="overwrite" to remove'
            " them",
        )


def clear_attempts(area: DataArea, files: EpochFiles, kept: Collection[str]) -> int:
    """Remove what failed attempts left next to the files that a committed epoch keeps; return the number of files.

    No other file of this BEGIN can be committed any more: the committed record is complete.
    """
    lost = set(area.names(files.directory)).difference(kept)
    if lost:
        reached("table: clearing")
        area.delete(files.directory, lost)
    return len(lost)


class LostDirectory(NamedTuple):
    """Unused files of one BEGIN."""

    generation: int
    path: str
    names: list[str]


def leftovers(area: DataArea, context: CleanUpContext, mark: str = "") -> list[LostDirectory]:
    """Find the files of older BEGINs: of the lost ones, or of all of them if these are not given.

    The latter may be in the table. `mark` is that of one of many tables.
    """
    step = context.incarnation
    if context.lost is not None:
        begun = [(number, directory_of(step, number, token, mark)) for number, token in context.lost.items()]
    else:
        bound = context.generation + context.final
        begun = [(number, directory) for number, directory in area.begun(step, mark) if number < bound]
    found = [LostDirectory(number, directory, _ours(area, directory, context)) for number, directory in begun]
    return [each for each in found if each.names]


def unnamed(area: DataArea, table: LoadedTable, found: Sequence[LostDirectory]) -> list[LostDirectory]:
    """Remove the files that a snapshot refers to from the list."""
    named = table.named({area.path(each.path, name) for each in found for name in each.names})
    rests = [each._replace(names=[n for n in each.names if area.path(each.path, n) not in named]) for each in found]
    return [each for each in rests if each.names]


def revoke_older(
    load: Callable[[], LoadedTable | None], context: CleanUpContext, found: Sequence[LostDirectory]
) -> LoadedTable | None:
    """Prevent any later commit of these files, before they are removed.

    The log fences drivers that share it. Only the table can fence a driver that continues with a copy of the log, taken
    after its BEGIN. If a newer generation of this log has committed, nothing is necessary. Otherwise this function
    commits without rows.

    Returns the current table. `None` if its record shows that the log was copied or that the table was rolled back,
    which a commit would hide from the next check; also `None` if other writers kept committing.
    """
    newest = max(each.generation for each in found)
    for _ in range(_TRIES):
        table = load()
        if table is None:
            return None
        record = table.record(context.incarnation) or TableRecord.first(context)
        if _is_strange(record, context) or (record.epoch >= 0 and table.left_out(record) is not None):
            return None
        if record.record.generation >= newest:
            return table
        nothing = EpochFiles(
            directory="", root=table.files.area.root, layout=table.files.layout, files=(), published=None
        )
        reached("table: revoking older")
        with suppress(HeadMovedError, UnclearCommitError):
            return table.commit(nothing, record.without(newest))
    return None


def _is_strange(record: TableRecord, context: CleanUpContext) -> bool:
    """Whether the record's driver is unknown to this log, or considered lost by it."""
    if record.generation == context.generation and context.token:
        return record.token != context.token
    return record.generation > context.generation or record.generation in (context.lost or ())


def _ours(area: DataArea, directory: str, context: CleanUpContext) -> list[str]:
    """The files of a directory with names of this sink: files of others are not removed."""
    return [name for name in area.names(directory) if _is_ours(name, context)]


def _is_ours(path: str, context: CleanUpContext) -> bool:
    ours = AttemptName.parse(path)
    return ours is not None and ours.incarnation == context.incarnation
