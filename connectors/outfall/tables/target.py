"""The table as the recovery data has it: checked before an epoch begins, cleaned up after failed attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from outfall.capabilities import CleanUpContext, CommitterInitContext, TargetContext
from outfall.errors import TargetLostError, TargetNotEmptyError
from outfall.storage.names import AttemptName
from outfall.tables.area import DataArea, directory_of
from outfall.tables.data_file import EpochFiles
from outfall.tables.marker import TableMarker
from outfall.tables.options import OnExisting
from outfall.tables.table import HeadMovedError, LoadedTable, UnclearCommitError
from outfall.target_record import behind, check_record
from outfall.trace_points import reached

_TRIES = 5
"""Number of attempts at a commit without rows after concurrent commits."""

_AHEAD = "restore the newest recovery data; or compare the table with the source, and start with a new checkpoint"


def check_table(where: str, table: LoadedTable | None, context: TargetContext[Any], on_existing: OnExisting) -> None:
    """Check the table against the recovery data, without changes.

    Args:
        where: the table, for texts.
        table: the loaded table; `None` if it does not exist.
        context: the recovery data of the target.
        on_existing: see `TableOptions`.

    Raises:
        TargetNotEmptyError, TargetLostError, TargetAheadError, FencedError.
    """
    found = None if table is None or not context.incarnation else table.marker(context.incarnation)
    if found is None and context.published is not None:
        what = (
            "does not exist" if table is None else (f"has no marker of this step (incarnation {context.incarnation})")
        )
        raise TargetLostError(
            f"{where} {what}, and epoch {context.published} was committed to it",
            step=context.step_id,
            epoch=context.epoch,
            why="it was dropped, recreated, or restored from an older copy, or its properties were removed",
            do="restore it, or start the query with a new checkpoint",
        )
    if table is None:
        return
    if found is not None:
        check_record(where, found.record_among(context.begun), context, ahead=_AHEAD)
        check_history(table, found, context.published, context)
    elif context.completed is None:
        _check_existing(where, table, context.step_id, on_existing)


def check_history(
    table: LoadedTable,
    found: TableMarker,
    published: int | None,
    context: TargetContext[Any] | CommitterInitContext,
) -> None:
    """Reject a table from which data of the step was rolled back after its commit.

    Args:
        table: the loaded table.
        found: its marker of the step.
        published: the newest epoch in the table, as recorded when the epoch began.
        context: the epoch that begins or is to be committed.

    Raises:
        TargetLostError: it was rolled back or restored.
    """
    gone = table.left_out(found) if found.epoch >= 0 else None
    if gone is None and not found.goes_before(published, context.begun):
        gone = f"its last epoch of this step is {found.epoch}, and epoch {published} was committed"
    if gone is not None:
        raise behind(table.where, gone, step=context.step_id, epoch=context.epoch)


def _check_existing(where: str, table: LoadedTable, step_id: str, on_existing: OnExisting) -> None:
    """Reject, on the first run, a table that `on_existing` does not permit."""
    if on_existing in ("resume", "overwrite"):
        return
    for other in table.markers(step_id):
        if other.epoch >= 0:
            raise TargetNotEmptyError(
                f"{where} has rows that this step wrote",
                step=step_id,
                why=f"the table has a marker of its incarnation {other.incarnation}, up to epoch {other.epoch},"
                " which this checkpoint does not have",
                do='continue with the checkpoint that wrote them, or set on_existing="resume" if none of their rows are'
                ' replayed, or on_existing="overwrite" to remove all rows of the table',
            )
    if on_existing == "error" and table.has_rows():
        raise TargetNotEmptyError(
            f"{where} is not empty",
            step=step_id,
            why='on_existing="error" is set, and readers see rows',
            do='name another table, or set on_existing="resume" to keep the rows or on_existing="overwrite" to remove'
            " them",
        )


def clear_attempts(area: DataArea, files: EpochFiles) -> int:
    """Remove files of failed attempts next to the files of a committed epoch; return the number of files.

    No other file of this BEGIN can be committed any more: the committed record is complete.
    """
    lost = set(area.names(files.directory)) - files.names
    if lost:
        reached("table: clearing")
        area.delete(files.directory, lost)
    return len(lost)


class LostDirectory(NamedTuple):
    """Unused files of one BEGIN."""

    generation: int
    path: str
    names: list[str]


def leftovers(area: DataArea, context: CleanUpContext) -> list[LostDirectory]:
    """Find the files of older BEGINs: of the lost ones, or of all of them if these are not given.

    The latter may be in the table.
    """
    if context.lost is not None:
        begun = [(number, directory_of(context.incarnation, number, token)) for number, token in context.lost.items()]
    else:
        bound = context.generation + context.final
        begun = [(number, directory) for number, directory in area.begun(context.incarnation) if number < bound]
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

    Returns:
        The current table. `None` if its marker shows that the log was copied or that the table was rolled back, which a
        commit would hide from the next check; also `None` if other writers kept committing.
    """
    newest = max(each.generation for each in found)
    for _ in range(_TRIES):
        table = load()
        if table is None:
            return None
        marker = table.marker(context.incarnation) or TableMarker.first(context)
        if _is_strange(marker, context) or (marker.epoch >= 0 and table.left_out(marker) is not None):
            return None
        if marker.record.generation >= newest:
            return table
        nothing = EpochFiles(
            directory="", root=table.files.area.root, layout=table.files.layout, files=(), published=None
        )
        reached("table: revoking older")
        with suppress(HeadMovedError, UnclearCommitError):
            return table.commit(nothing, marker.without(newest))
    return None


def _is_strange(marker: TableMarker, context: CleanUpContext) -> bool:
    """Whether the marker's driver is unknown to this log, or considered lost by it."""
    if marker.generation == context.generation and context.token:
        return marker.token != context.token
    return marker.generation > context.generation or marker.generation in (context.lost or ())


def _ours(area: DataArea, directory: str, context: CleanUpContext) -> list[str]:
    """The files of a directory with names of this sink: files of others are not removed."""
    parsed = ((name, AttemptName.parse(name)) for name in area.names(directory))
    return [name for name, ours in parsed if ours is not None and ours.incarnation == context.incarnation]
