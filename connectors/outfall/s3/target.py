"""The prefix of a step: compared with the recovery log before an epoch begins, and opened afterwards."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

from outfall.capabilities import TargetContext
from outfall.errors import TargetAheadError, TargetError, TargetLostError, TargetNotEmptyError
from outfall.s3.clean_up import delete
from outfall.s3.errors import status_of
from outfall.s3.manifest import Manifests
from outfall.s3.marker import FoundMarker, Markers
from outfall.s3.rolling.pieces import key_of
from outfall.s3.store import Store
from outfall.storage.first_contact import TargetContents, check_existing, nested_targets
from outfall.storage.marker import missing_marker, overwritten
from outfall.storage.names import SIDECAR, SPARK_LOG, SUMMARIES, AttemptName, is_hidden
from outfall.target_record import TargetRecord, check_record
from outfall.trace_points import reached

log = logging.getLogger(__name__)

_AHEAD = (
    "restore the newest recovery log; or delete the objects of the later epochs, which are listed in their manifests,"
    " and start with a new checkpoint"
)
_NESTED_MARKER = re.compile(rf"(.+/){SIDECAR}/[0-9a-f]{{16}}\.json")


class PrefixTarget(TargetContents):
    """The prefix of one step in one epoch. Used on the driver.

    There are no locks. A query first writes its marker and then checks for others. If two queries start at the same
    moment, at least the later one finds the other and gives up. A query that overwrites the prefix lists the objects to
    delete, removes the markers of their possible writers, and checks that its own marker still exists. Objects that
    other queries write later are not in its list.
    """

    def __init__(self, store: Store, context: TargetContext[Any]) -> None:
        self.where = store.options.url()
        self._store = store
        self._context = context
        self._markers = Markers(store)
        self._manifests = Manifests(store)

    def check(self) -> None:
        """Reject a prefix that does not match the recovery log. Changes nothing.

        Raises:
            TargetNotEmptyError: on the first run, it holds data that `on_existing` does not allow.
            TargetLostError: it is missing or behind the recovery log.
            TargetAheadError: it is ahead of the recovery log.
            FencedError: another driver has opened it.
        """
        context = self._context
        if context.incarnation:
            self._check_ours()
        # Also if this step's marker exists: the driver that wrote it may have died before this check.
        if context.completed is None:
            self._check_existing()

    def open(self) -> None:
        """Take possession of the prefix on the first run, and record this driver in the marker.

        With `on_existing="overwrite"`, existing data is deleted first.

        Raises:
            TargetNotEmptyError: another query opened the prefix at the same moment, or writes above or below it.
            TargetLostError: the marker is missing.
            FencedError: a newer driver, or one with another copy of the recovery log, has opened the prefix.
        """
        found = self._markers.find(self._context.incarnation)
        if found is None or not found.marker.opened:
            found = self._take_possession(found)
        if self._markers.open(found, self._context) is None:
            raise self._removed()

    # --- comparison with the recovery log

    def _check_ours(self) -> None:
        context = self._context
        found = self._markers.find(context.incarnation)
        if found is None and context.completed is not None:
            raise missing_marker(
                self.where, self._markers.url(context.incarnation), context.completed, step=context.step_id
            )
        first = context.completed if context.published is None else context.published
        manifests = list(self._manifests.since(context.incarnation, -1 if first is None else first))
        if found is not None:
            self._check_marker(found, manifests)
        later = self._manifests.key(context.incarnation, -1 if context.completed is None else context.completed)
        ahead = [key for key in manifests if key > later or context.completed is None]
        if ahead:
            raise TargetAheadError(
                f"{self.where} is ahead of the recovery data: it has {self._store.url(ahead[0])}",
                step=context.step_id,
                epoch=context.epoch,
                why=f"the recovery data ends at generation {context.last_generation}, completed epoch"
                f" {context.completed}: it was restored from an older copy, or its newest entries are lost",
                do=_AHEAD,
            )
        if context.published is not None and not self._holds(manifests, context.published):
            newest = self._store.url(self._manifests.key(context.incarnation, context.published))
            raise TargetLostError(
                f"{self.where} is behind the recovery data: {newest} is missing",
                step=context.step_id,
                epoch=context.epoch,
                why=f"epoch {context.published} was published with its manifest: the prefix was restored from an older"
                " copy, or the manifest was deleted",
                do="restore a newer copy of the prefix, or start the query with a new checkpoint",
            )

    def _check_marker(self, found: FoundMarker, manifests: list[str]) -> None:
        record, published = found.marker.record, self._context.published
        if not found.marker.matching:
            # A stale driver may have replaced a newer marker. The manifests then determine the newest epoch.
            epoch = record.epoch
            if published is not None and self._holds(manifests, published):
                epoch = published if epoch is None else max(epoch, published)
            record = TargetRecord(record.generation, None, epoch)
        check_record(self.where, record, self._context, ahead=_AHEAD)

    def _holds(self, manifests: list[str], epoch: int) -> bool:
        return self._manifests.key(self._context.incarnation, epoch) in manifests

    # --- first contact

    def _take_possession(self, found: FoundMarker | None) -> FoundMarker:
        context = self._context
        reached("s3: opening")
        found = found or self._markers.announce(context)
        if found is None:
            raise self._removed()
        reached("s3: announced")
        try:
            self._check_existing()
            if self._store.options.on_existing == "overwrite":
                self._delete_existing()
        except TargetNotEmptyError:
            self._markers.remove(context.incarnation)
            raise
        return found

    def _removed(self) -> TargetError:
        """Return the error of a marker that disappeared after it was written."""
        if self._context.completed is not None:
            return overwritten(self._markers.url(self._context.incarnation))
        return TargetNotEmptyError(
            f"{self.where} was opened by another query at the same moment",
            step=self._context.step_id,
            why=f"the marker {self._markers.url(self._context.incarnation)} disappeared:"
            ' a query with on_existing="overwrite" has removed it',
            do="use another prefix; or make sure that only one query writes to this one, and start that query again",
        )

    def _check_existing(self) -> None:
        check_existing(self, self._store.options.on_existing, self._context.step_id)

    def has_spark_log(self) -> bool:
        return next(self._store.keys(f"{self._store.options.root}{SPARK_LOG}/"), None) is not None

    def others(self) -> list[str]:
        return list(map(self._markers.url, self._others()))

    def foreign(self) -> Iterator[str]:
        return filter(self._is_foreign, self._keys_below())

    def nested(self) -> Iterator[str]:
        """Yield the markers above the prefix; `_keys_below` finds those below it.

        With `on_existing="resume"`, only the markers of queries that are overwriting their prefix.
        """
        for root in self._roots_above():
            markers = Markers(self._store, root)
            for incarnation in self._incarnations_above(markers):
                if self._store.options.on_existing != "resume":
                    yield markers.url(incarnation)
                    continue
                found = markers.find(incarnation)
                if found is not None and not found.marker.opened:
                    yield markers.url(incarnation)

    def _roots_above(self) -> Iterator[str]:
        """Yield the prefixes above this one whose readers would see its objects."""
        root = self._store.options.root
        levels = root.split("/")[:-1]
        for count in range(len(levels)):
            if not is_hidden("/".join([*levels[count:], "object"])):
                yield "".join(f"{level}/" for level in levels[:count])

    def _incarnations_above(self, markers: Markers) -> list[str]:
        try:
            return markers.incarnations()
        except TargetError as error:
            if status_of(error.__cause__) != 403:
                raise
            # A user who may list only this prefix writes no data above it.
            log.debug("prefixes above %s may not be listed", self.where)
            return []

    def _keys_below(self) -> Iterator[str]:
        """Yield all keys below the prefix.

        Raises:
            TargetNotEmptyError: one of them is the marker of another query, whose prefix is inside this one.
        """
        root = self._store.options.root
        for key in self._store.keys(root):
            match = _NESTED_MARKER.fullmatch(key, len(root))
            if match is not None and not is_hidden(f"{match[1]}object"):
                raise nested_targets(self.where, self._context.step_id, self._store.url(key))
            yield key

    def _others(self) -> list[str]:
        """Return the incarnations of other queries that write here or have written here."""
        return [each for each in self._markers.incarnations() if each != self._context.incarnation]

    def _is_foreign(self, key: str) -> bool:
        """Return whether an object is visible to readers and was created by another writer."""
        name = AttemptName.parse(key, with_step=True)
        ours = name is not None and name.incarnation == self._context.incarnation
        return not ours and not is_hidden(key.removeprefix(self._store.options.root))

    # --- overwriting

    def _delete_existing(self) -> None:
        """Delete objects of other writers. Those of this step are kept: another driver may have written them."""
        # Markers first: a query that is about to publish then finds that its marker is missing, and fails.
        self._stop_others()
        described, keys = self._replaced()
        # Again, for queries that started during the listing: their objects may be among the keys.
        self._stop_others()
        self._check_existing()
        if self._markers.find(self._context.incarnation) is None:
            raise self._removed()
        reached("s3: deleting existing")
        # Summaries first: without them, readers list the objects; with them, readers would miss objects.
        delete(self._store, [*described, *keys])
        if described or keys:
            log.warning(
                "step %r: on_existing=overwrite deleted %d objects below %s",
                self._context.step_id,
                len(described) + len(keys),
                self.where,
            )

    def _stop_others(self) -> None:
        for incarnation in self._others():
            self._markers.remove(incarnation)
            reached("s3: others stopped")

    def _replaced(self) -> tuple[list[str], list[str]]:
        """List the keys to delete: summaries of the whole prefix, and objects of other writers."""
        root, ours = self._store.options.root, self._context.incarnation
        sidecars = (f"{root}{SIDECAR}/manifests/", key_of(self._store, ""))
        described, keys = [], []
        for key in self._keys_below():
            name = key.removeprefix(root)
            if name in SUMMARIES or name.startswith(f"{SPARK_LOG}/"):
                described.append(key)
            elif self._is_foreign(key) or any(
                key.startswith(place) and not key.startswith(f"{place}{ours}/") for place in sidecars
            ):
                keys.append(key)
        return described, keys
