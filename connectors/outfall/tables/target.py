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
"""How often a commit without rows is tried where others commit first."""

_AHEAD = "restore the newest recovery data; or compare the table with the source, and start with a new checkpoint"


def check_table(where: str, table: LoadedTable | None, context: TargetContext[Any], on_existing: OnExisting) -> None:
    """Refuse a table that is not what the recovery data says, and change nothing.

    Args:
        where: the table, for texts.
        table: as it was loaded; `None` where there is none.
        context: what the recovery data says.
        on_existing: see `TableOptions`.

    Raises:
        TargetNotEmptyError, TargetLostError, TargetAheadError, FencedError.
    """
    found = None if table is None or not context.incarnation else table.marker(context.incarnation)
    if found is None and context.published is not None:
        what = "does not exist" if table is None else f"says nothing of this step (incarnation {context.incarnation})"
        raise TargetLostError(
            f"{where} {what}, and epoch {context.published} was committed to it",
            step=context.step_id,
            epoch=context.epoch,
            why="it was dropped, made anew, or restored from an older copy, or its properties were removed",
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
    """Refuse a table from which something of the step was taken back since it was committed.

    Args:
        table: as it was loaded.
        found: what it says of the step.
        published: the newest epoch that was committed to it, as recorded when the epoch began.
        context: whose epoch begins or is to be committed.

    Raises:
        TargetLostError: it was rolled back or restored.
    """
    gone = table.left_out(found) if found.epoch >= 0 else None
    if gone is None and not found.goes_before(published, context.begun):
        gone = f"epoch {found.epoch} is the last one of this step that it names, and epoch {published} was"
    if gone is not None:
        raise behind(table.where, gone, step=context.step_id, epoch=context.epoch)


def _check_existing(where: str, table: LoadedTable, step_id: str, on_existing: OnExisting) -> None:
    """Refuse, on first contact, what `on_existing` does not put up with."""
    if on_existing in ("resume", "overwrite"):
        return
    for other in table.markers(step_id):
        if other.epoch >= 0:
            raise TargetNotEmptyError(
                f"{where} holds rows that this step has written",
                step=step_id,
                why=f"the table names incarnation {other.incarnation} of it, up to epoch {other.epoch}, and this"
                " checkpoint knows nothing of that",
                do='go on with the checkpoint that wrote them, or set on_existing="resume" if none of their rows come'
                ' again, or on_existing="overwrite" to remove all rows of the table',
            )
    if on_existing == "error" and table.has_rows():
        raise TargetNotEmptyError(
            f"{where} is not empty",
            step=step_id,
            why='on_existing="error" was asked for, and readers see rows',
            do='name another table, or set on_existing="resume" to keep the rows or on_existing="overwrite" to remove'
            " them",
        )


def clear_attempts(area: DataArea, files: EpochFiles) -> int:
    """Remove what lost attempts left beside the files of an epoch that is committed; return how many files.

    Nothing else of this BEGIN can be committed any more: what its record names is all there.
    """
    lost = set(area.names(files.directory)) - files.names
    if lost:
        reached("table: clearing")
        area.delete(files.directory, lost)
    return len(lost)


class LostDirectory(NamedTuple):
    """Files of one BEGIN that nothing needs."""

    generation: int
    path: str
    names: list[str]


def leftovers(area: DataArea, context: CleanUpContext) -> list[LostDirectory]:
    """Find what attempts of older BEGINs left: of those that were lost, or where that is not said, of all of them.

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
    """Leave out the files that a snapshot names."""
    named = table.named({area.path(each.path, name) for each in found for name in each.names})
    rests = [each._replace(names=[n for n in each.names if area.path(each.path, n) not in named]) for each in found]
    return [each for each in rests if each.names]


def revoke_older(
    load: Callable[[], LoadedTable | None], context: CleanUpContext, found: Sequence[LostDirectory]
) -> LoadedTable | None:
    """See to it that none of these files is committed any more, before they are removed.

    The log fences drivers that share it. Of a driver that goes on with a copy of it, made after its BEGIN, only the
    table knows. Once a newer generation of this log has committed nothing is needed; otherwise a commit without rows
    is made.

    Returns:
        The table from then on. `None` where it says that the log was copied, or was rolled back, which a commit would
        hide from the next check; and where others kept committing.
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
    """Whether a driver has committed that this log does not know, or that it takes for lost."""
    if marker.generation == context.generation and context.token:
        return marker.token != context.token
    return marker.generation > context.generation or marker.generation in (context.lost or ())


def _ours(area: DataArea, directory: str, context: CleanUpContext) -> list[str]:
    """The files of a directory that carry our name: what others put there is not ours to remove."""
    parsed = ((name, AttemptName.parse(name)) for name in area.names(directory))
    return [name for name, ours in parsed if ours is not None and ours.incarnation == context.incarnation]
