"""First contact with a directory: whose data is there, and what becomes of it (`on_existing`)."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePath

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetNotEmptyError
from outfall.file.disk import sync_directory
from outfall.file.flock import Patience, locked
from outfall.file.layout import SPARK_LOG, SUMMARIES, Layout
from outfall.file.local_store import last_publisher
from outfall.file.options import FileOptions
from outfall.file.writer_record import WriterRecord
from outfall.file.writer_registry import Register
from outfall.trace_points import reached

log = logging.getLogger(__name__)


def check_usable(layout: Layout) -> None:
    """Refuse a path that cannot be written into, before anything is recorded.

    Raises:
        TargetError: it is no directory, or not writable here.
    """
    place = layout.path
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise TargetError(f"{place} is not a directory", do="name a directory as path")
    if not os.access(place, os.W_OK | os.X_OK):
        raise TargetError(
            f"the directory {place} is not writable for this process",
            do="correct its owner or mode, mount it for writing, or name another path",
        )


def check_existing(layout: Layout, options: FileOptions, step_id: str, incarnation: str) -> None:
    """Refuse a directory that holds what is not ours, unless `on_existing` says what to do with it.

    Raises:
        TargetNotEmptyError: naming what was found.
    """
    if options.on_existing == "overwrite":
        _refuse_directories(layout, options, step_id)
        _refuse_others_around(layout, step_id)
        return
    if os.path.lexists(layout.data(SPARK_LOG)):
        raise listed_by_spark(layout.path, step_id)
    if options.on_existing == "resume":
        return
    found = [entry.name for entry in islice(layout.visible(), 3)]
    others = [name for name in layout.markers() if name != incarnation]
    if found or others:
        raise not_empty(layout.path, step_id, found, others)
    _refuse_others_around(layout, step_id)


def not_empty(root: str, step_id: str, found: Sequence[str], others: Sequence[str]) -> TargetNotEmptyError:
    """Make the error of a target that holds what is not ours."""
    return TargetNotEmptyError(
        f"{root} is not empty",
        step=step_id,
        why=f"it holds {', '.join(found)}"
        if found
        else f"another query writes there: {root}/_outfall/{others[0]}.json",
        do='empty the directory (with its _outfall), name another path, or set on_existing="resume" to keep what is'
        ' there or on_existing="overwrite" to delete it',
    )


def around_others(root: str, step_id: str, marker: str) -> TargetNotEmptyError:
    """Make the error of a target within another query's, or around it."""
    return TargetNotEmptyError(
        f"{root} and the directory of another query lie one within the other",
        step=step_id,
        why=f"that query's marker is {marker}: each would take, or delete, the other's files for its own",
        do="name a path beside it; or, if that query is gone for good, delete its _outfall",
    )


def listed_by_spark(root: str, step_id: str) -> TargetNotEmptyError:
    """Make the error of a target that Spark's own streaming file sink has written."""
    return TargetNotEmptyError(
        f"{root} holds {SPARK_LOG}, the log of Spark's own streaming file sink",
        step=step_id,
        why="Spark reads only the files that this log lists, so that rows written beside them would not be seen",
        do="name another path; or stop the query that writes there, and delete the log to keep its files (also those of"
        ' epochs that it did not complete), or set on_existing="overwrite" to delete the log and the files',
    )


def _refuse_others_around(layout: Layout, step_id: str) -> None:
    """Refuse a directory above or below which another query writes."""
    below = [Layout(directory) for directory, _, _ in layout.walk() if directory != layout.path]
    above = [Layout(str(directory)) for directory in PurePath(os.path.realpath(layout.path)).parents]
    for other in (*below, *above):
        # What may not be looked into was not written by anybody with these rights.
        with suppress(PermissionError, NotADirectoryError):
            for incarnation in other.markers():
                raise around_others(layout.path, step_id, other.marker(incarnation))


def delete_existing(layout: Layout, options: FileOptions, context: TargetContext[object], patience: Patience) -> None:
    """Delete what readers see or go by, and the markers of others, so that a query that still writes here stops.

    Called before our own marker exists, under the opening lock: never when anything of ours can be there.
    """
    _refuse_directories(layout, options, context.step_id)
    _refuse_others_around(layout, context.step_id)
    others = [layout.marker(name) for name in layout.markers() if name != context.incarnation]
    # A query that is publishing has checked its marker: it is waited for, and the next one finds its marker gone.
    with locked(layout.publishing, patience, holder=last_publisher):
        for path in others:
            os.unlink(path)
            reached("file: existing deleted")
    # A query whose growing parts are open finds our record before its next write, and begins no segment.
    for suffix in layout.registers():
        with Register(layout, suffix, patience).alone() as held:
            held.clear(WriterRecord.taken_by(context))
    reached("file: others stopped")
    _delete_spark_log(layout)
    files = [os.path.join(directory, name) for directory, _, names in layout.walk() for name in names]
    files += filter(os.path.lexists, map(layout.data, SUMMARIES))
    for path in files:
        os.unlink(path)
        reached("file: existing deleted")
    if not files and not others:
        return
    _remove_directories(layout)
    sync_directory(layout.sidecar)
    sync_directory(layout.path)
    log.warning("step %r: on_existing=overwrite deleted %d files in %s", context.step_id, len(files), layout.path)


def _delete_spark_log(layout: Layout) -> None:
    """Delete the log of Spark's own sink, before the files that it lists.

    It is moved away as a whole first: a reader finds all of it or none, whenever this is killed.
    """
    _remove(layout.replaced)
    if os.path.lexists(layout.data(SPARK_LOG)):
        os.rename(layout.data(SPARK_LOG), layout.replaced)
        sync_directory(layout.path)
        reached("file: log of Spark moved away")
        _remove(layout.replaced)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _remove_directories(layout: Layout) -> None:
    """Remove the directories of buckets that are empty by now, the innermost first."""
    for directory in sorted((directory for directory, _, _ in layout.walk()), reverse=True):
        if directory != layout.path:
            with suppress(OSError):
                os.rmdir(directory)


def _refuse_directories(layout: Layout, options: FileOptions, step_id: str) -> None:
    """Refuse directories that are no buckets of this sink: they are deeper than its buckets are."""
    for directory, directories, _ in layout.walk():
        depth = 0 if directory == layout.path else os.path.relpath(directory, layout.path).count(os.sep) + 1
        links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
        if links:
            raise TargetNotEmptyError(
                f"{directory} holds the directory {links[0]!r}, which is a symbolic link",
                step=step_id,
                why='on_existing="overwrite" does not delete what lies behind it, and readers would see it',
                do="delete it yourself, or name another path",
            )
        if directories and depth >= options.bucket_levels:
            raise TargetNotEmptyError(
                f"{directory} holds the directory {directories[0]!r}",
                step=step_id,
                why='on_existing="overwrite" deletes files, and of directories only those of buckets',
                do="delete it yourself, or name another path",
            )
