"""The first run against a directory: existing data, and its deletion (`on_existing`)."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetNotEmptyError
from outfall.file.growing.registry import Register, RegisterEntry
from outfall.file.options import FileOptions
from outfall.file.stores.local import LocalStore
from outfall.file.stores.store import STAGING, FileStore
from outfall.filesystems import sync_directory
from outfall.possession.contents import TargetContents
from outfall.storage.layout import check_partitions
from outfall.storage.names import SIDECAR, SPARK_LOG, SUMMARIES, AttemptName
from outfall.trace_points import reached

log = logging.getLogger(__name__)

_REPLACED = f"{SIDECAR}/replaced"
"""The location to which the log of Spark's own sink is moved before it is deleted."""


def check_usable(path: str) -> None:
    """Reject a path on a disk that is not writable, before anything is recorded.

    Raises `TargetError` if it is not a directory, not writable on this host, or has a link in place of this sink's own
    files.
    """
    for inner in (SIDECAR, STAGING):
        if os.path.islink(f"{path}/{inner}"):
            raise TargetError(
                f"{path}/{inner} is a symbolic link",
                why="files are created and deleted there, and the link may lead to files of others",
                do="delete the link; if its target is on the filesystem of the directory, move that there instead",
            )
    place = path
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise TargetError(f"{place} is not a directory", do="set path to a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise TargetError(
            f"the directory {place} is not writable for this process",
            do="correct its owner or mode, mount it for writing, or set another path",
        )


class FoundFiles(TargetContents):
    """The contents of a directory, from the view of one step."""

    def __init__(self, store: FileStore, options: FileOptions, incarnation: str) -> None:
        self.where = store.root
        self._store = store
        self._may_nest = options.existing.others == "keep"
        self._incarnation = incarnation

    def has_spark_log(self) -> bool:
        return self._store.has_spark_log()

    def others(self) -> Sequence[str]:
        return [self._store.record_path(name) for name in self._store.incarnations() if name != self._incarnation]

    def foreign(self) -> Iterator[str]:
        for path in self._store.visible():
            name = AttemptName.parse(path)
            if name is None or name.incarnation != self._incarnation:
                yield path

    def nested(self) -> Iterable[str]:
        return () if self._may_nest else self._store.others_around()


def check_deletable(store: FileStore, options: FileOptions, step_id: str) -> None:
    """Before an overwrite, raise `TargetNotEmptyError` for a directory that is not a partition of this sink."""
    if not isinstance(store, LocalStore):
        check_partitions(store.root, options, store.files(), step_id)
        return
    for directory, directories, _ in store.walk():
        below = "" if directory == store.root else f"{os.path.relpath(directory, store.root)}/"
        links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
        if links:
            raise TargetNotEmptyError(
                f"{directory} holds the directory {links[0]!r}, which is a symbolic link",
                step=step_id,
                why='on_existing="overwrite" does not delete the target of a link, and readers would still read it',
                do="delete the link, or set another path",
            )
        check_partitions(store.root, options, (f"{below}{name}/" for name in directories), step_id)


def delete_existing(store: LocalStore, options: FileOptions, context: TargetContext[object]) -> None:
    """Delete all visible files, and the records of other queries so that they fail.

    Called under the opening lock and before the record of this step exists, so none of its own files can exist.
    """
    others = [incarnation for incarnation in store.incarnations() if incarnation != context.incarnation]
    # A publishing query has already checked its record, so wait for it. Later ones find that their record is missing.
    with store.nobody_publishing():
        for incarnation in others:
            store.remove_record(incarnation)
            reached("file: existing deleted")
    # A query with open growing parts finds this record before its next write or its next segment.
    for register in Register.all_in(store):
        with register.alone() as held:
            held.clear(RegisterEntry.taken_by(context))
    reached("file: others stopped")
    _delete_spark_log(store)
    files = [*store.files(), *(name for name in SUMMARIES if os.path.lexists(store.at(name)))]
    for path in files:
        os.unlink(store.at(path))
        reached("file: existing deleted")
    if not files and not others:
        return
    # The partition directories are empty now. Remove the innermost first.
    for directory in sorted((directory for directory, _, _ in store.walk()), reverse=True):
        if directory != store.root:
            with suppress(OSError):
                os.rmdir(directory)
    store.sync([SIDECAR, ""])
    log.warning("step %r: on_existing=overwrite deleted %d files in %s", context.step_id, len(files), store.root)


def _delete_spark_log(store: LocalStore) -> None:
    """Delete the log of Spark's own sink, before the files that it lists.

    The log is first moved as a whole, so a reader finds either all of it or none, even after a crash.
    """
    _remove(store.at(_REPLACED))
    if store.has_spark_log():
        os.rename(store.at(SPARK_LOG), store.at(_REPLACED))
        sync_directory(store.root)
        reached("file: log of Spark moved away")
        _remove(store.at(_REPLACED))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
