"""Whole files in object stores and in HDFS."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from outfall.capabilities import SweepContext, TargetContext
from outfall.errors import ConfigurationError, FencedError, TargetNotEmptyError
from outfall.file.disk import explained
from outfall.file.first_contact import around_others, listed_by_spark, not_empty
from outfall.file.layout import SUMMARIES
from outfall.file.marker import Marker, missing_marker, new_marker
from outfall.file.names import FileName
from outfall.file.remote_store import RENAMES, RemoteStore
from outfall.file.whole import WholeFileSink, last_epoch
from outfall.location import Location
from outfall.target_record import TargetRecord, check_opening
from outfall.trace_points import reached

log = logging.getLogger(__name__)


class RemoteWholeFileSink(WholeFileSink):
    """`FileSink("s3://bucket/path")`: see there.

    There are no locks. What must not happen twice at once, taking possession, is announced first and looked at after:
    of two queries that come at the same moment one or both are refused.
    """

    _seen: Sequence[TargetRecord] = ()
    """What `check_target` saw of who opened the target."""

    @cached_property
    def location(self) -> Location:
        """Where the files go."""
        location = self.options.remote
        if location is None:
            raise ConfigurationError(f"{self.options.path} is no URL", do="use FileSink, which chooses by the path")
        return location

    @property
    def store(self) -> RemoteStore:
        return RemoteStore(self.location)

    def requires(self) -> Sequence[str]:
        readers = "readers that skip names starting with _ or . as Spark's do"
        if self.location.scheme == "memory":
            return ("driver and tasks in one process, as in tests", readers)
        if self.location.scheme in RENAMES:
            return ("a rename that is atomic, as the namenode's", readers)
        return ("a store that shows at once what was written, and copies objects whole", readers)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        store = self.store
        with explained("checking", store.root):
            found = store.read_marker(context.incarnation)
            if found is not None:
                self._seen = store.records(found)
                self._check_marker(found, self._seen, context)
            elif context.completed is not None:
                raise missing_marker(store.root, context.incarnation, context.completed)
            # Until an epoch is completed, also with our marker there: whoever wrote it may have died before this check.
            if context.completed is None:
                self._check_existing(store, context)
        return {}

    def check_connection(self) -> Sequence[str]:
        store = self.store
        with explained("writing to", store.root):
            store.probe()
        return [f"files can be made and removed below {store.root}"]

    def open_target(self, context: TargetContext[Any]) -> None:
        store = self.store
        with explained("opening", store.root):
            found = store.read_marker(context.incarnation)
            if found is None or not found.ready:
                found = self._open_first(store, context)
            self._enter(store, found, context)

    def withdraw(self, context: SweepContext) -> None:
        store = self.store
        with explained("leaving", store.root):
            store.remove_marker(context.incarnation)

    def _check_existing(self, store: RemoteStore, context: TargetContext[Any]) -> None:
        if self.options.on_existing != "resume":
            around = next(store.others_around(), None)
            if around is not None:
                raise around_others(store.root, context.step_id, around)
        if self.options.on_existing == "overwrite":
            return
        if store.has_spark_log():
            raise listed_by_spark(store.root, context.step_id)
        if self.options.on_existing == "resume":
            return
        found = list(islice(self._of_others(store, context), 3))
        others = [name for name in store.markers() if name != context.incarnation]
        if found or others:
            raise not_empty(store.root, context.step_id, found, others)

    def _open_first(self, store: RemoteStore, context: TargetContext[Any]) -> Marker:
        reached("file: opening")
        found = store.read_marker(context.incarnation)
        if found is None:
            found = replace(new_marker(context), ready=self.options.on_existing != "overwrite")
            store.write_marker(found)
        reached("file: marker created")
        try:
            self._check_existing(store, context)
        except TargetNotEmptyError:
            store.remove_marker(context.incarnation)
            raise
        if not found.ready:
            found = replace(found, ready=True)
            self._delete_existing(store, context)
            store.write_marker(found)
        return found

    def _delete_existing(self, store: RemoteStore, context: TargetContext[Any]) -> None:
        """Delete what others left. Our own files are spared: another driver of this step may have been faster."""
        for incarnation in store.markers():
            if incarnation != context.incarnation:
                # Markers first: a query that is about to publish finds its marker gone and stops.
                store.remove_marker(incarnation)
        reached("file: others stopped")
        if store.read_marker(context.incarnation) is None:
            raise TargetNotEmptyError(
                f"another query overwrites {store.root} at the same moment",
                step=context.step_id,
                why="each has removed the other's marker, and neither has deleted a file since",
                do="run one of the two, or give each a path of its own",
            )
        store.delete_spark_log()
        paths = list(self._of_others(store, context))
        store.unpublish([*paths, *SUMMARIES])
        if paths:
            log.warning(
                "step %r: on_existing=overwrite deleted %d files in %s", context.step_id, len(paths), store.root
            )

    def _of_others(self, store: RemoteStore, context: TargetContext[Any]) -> Any:
        for path in store.visible():
            name = FileName.parse(path.rpartition("/")[2])
            if name is None or name.incarnation != context.incarnation:
                yield path

    def _enter(self, store: RemoteStore, marker: Marker, context: TargetContext[Any]) -> None:
        """Say that this BEGIN opens the target, and look for others after: of two that do so at once none stays unseen.

        First take back what `check_target` found to be later than the recovery data, unless it looks different by now.

        Raises:
            FencedError: another driver opened the target meanwhile.
        """
        mine = TargetRecord(context.generation, context.token, marker.record.epoch)
        store.claim(context.incarnation, mine)
        reached("file: claimed")
        others = [record for record in store.records(marker) if record != mine]
        taking_back = self._ahead == marker and self._seen in (others, [marker.record])
        if not taking_back:
            try:
                for record in others:
                    check_opening(store.root, record, context)
            except FencedError:
                store.unclaim(context.incarnation, mine)
                raise
        for record in others:
            store.unclaim(context.incarnation, record)
        if taking_back:
            self._unpublish(context)
            store.write_marker(marker.opened(context).rewound(last_epoch(context)))
        self._ahead = None
