"""How a prefix keeps the record of a step, and what else is below it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import filterfalse
from typing import Any

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import FencedError, TargetAheadError, TargetError, TargetLostError
from outfall.possession.contents import TargetContents, check_existing, nested_targets
from outfall.possession.possession import Change, EpochPort, FoundRecord, removed
from outfall.s3.clean_up import delete
from outfall.s3.errors import status_of
from outfall.s3.manifest import Manifests
from outfall.s3.record import ObjectRecord, ObjectRecords
from outfall.s3.rolling.pieces import key_of
from outfall.s3.store import Store
from outfall.storage.layout import LAYOUT, DirectoryLayout, check_partitions
from outfall.storage.names import SIDECAR, SPARK_LOG, SUMMARIES, AttemptName, is_hidden
from outfall.target_record import TargetRecord
from outfall.trace_points import reached

log = logging.getLogger(__name__)

_AHEAD = (
    "restore the newest recovery log; or delete the objects of the later epochs, which are listed in their manifests,"
    " and start with a new checkpoint"
)
_NESTED_RECORD = re.compile(rf"(.+/){SIDECAR}/[0-9a-f]{{16}}\.json")


class PrefixPort(EpochPort[ObjectRecord], TargetContents):
    """The prefix of one step. Used on the driver.

    There are no locks. A query that overwrites the prefix lists the objects to delete, removes the records of their
    possible writers, and checks that its own record still exists. Objects that other queries write later are not in its
    list.
    """

    ahead = _AHEAD

    def __init__(self, store: Store, incarnation: str, step_id: str) -> None:
        self.where = store.options.url()
        self.incarnation = incarnation
        self.overwrites = store.options.existing.others == "delete"
        self._step_id = step_id
        self._store = store
        self._records = ObjectRecords(store)
        self._manifests = Manifests(store)
        self.name = self._records.url(incarnation)

    # --- the record

    def read(self) -> FoundRecord[ObjectRecord] | None:
        return self._records.find(self.incarnation)

    def update(self, change: Change[ObjectRecord]) -> ObjectRecord | None:
        return self._records.update(self.incarnation, change)

    def open(self, context: TargetContext[Any], change: Change[ObjectRecord]) -> ObjectRecord | None:
        return self.update(change)

    def create(self, context: TargetContext[Any]) -> None:
        self._records.create(context)

    def remove(self) -> None:
        self._records.remove(self.incarnation)

    def opening(self) -> AbstractContextManager[object]:
        reached("s3: opening")
        return super().opening()

    # --- the log

    def records(
        self, found: FoundRecord[ObjectRecord], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        record = found.stored.record
        if found.stored.matching:
            return [record]
        # A stale driver may have replaced a newer record. The manifests then determine the newest epoch, before BEGIN.
        if context.generation == 0 and isinstance(context, TargetContext):
            return [replace(record, token=None, epoch=self._newest_epoch(record, context))]
        if context.published is not None and (record.epoch is None or record.epoch < context.published):
            record = replace(record, epoch=context.published)
        if isinstance(context, CommitterInitContext):
            return [record]
        if record.generation < min(context.begun, default=0):
            return [replace(record, token=None)]
        return [record]

    def _newest_epoch(self, record: TargetRecord, context: TargetContext[Any]) -> int | None:
        published = context.published
        if published is None or self._manifests.key(self.incarnation, published) not in self._since(context):
            return record.epoch
        return published if record.epoch is None else max(record.epoch, published)

    def _since(self, context: TargetContext[Any]) -> list[str]:
        """Return the keys of the manifests from the last published or completed epoch on."""
        first = context.completed if context.published is None else context.published
        return list(self._manifests.since(self.incarnation, -1 if first is None else first))

    def check_data(self, found: FoundRecord[ObjectRecord] | None, context: TargetContext[Any]) -> None:
        manifests = self._since(context)
        later = self._manifests.key(self.incarnation, -1 if context.completed is None else context.completed)
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
        newest = None if context.published is None else self._manifests.key(self.incarnation, context.published)
        if newest is not None and newest not in manifests:
            raise TargetLostError(
                f"{self.where} is behind the recovery data: {self._store.url(newest)} is missing",
                step=context.step_id,
                epoch=context.epoch,
                why=f"epoch {context.published} was published with its manifest: the prefix was restored from an older"
                " copy, or the manifest was deleted",
                do="restore a newer copy of the prefix, or start the query with a new checkpoint",
            )

    def check_publishing(self, found: FoundRecord[ObjectRecord], context: CommitterInitContext) -> None:
        super().check_publishing(found, context)
        if found.stored.epoch > context.epoch:
            raise FencedError(
                f"{self.where} is at epoch {found.stored.epoch}, so this epoch is no longer published",
                step=context.step_id,
                epoch=context.epoch,
                why="a newer driver has finished the epoch, or the recovery log was restored from an older copy",
                do="nothing, if the newer driver is the intended one; otherwise restore the newest recovery log",
            )

    # --- the layout

    @property
    def root(self) -> str:
        """See `LayoutPlace`, as for the methods below."""
        return self.where

    def read_layout(self) -> bytes | None:
        content = self._store.read(f"{self._store.options.root}{LAYOUT}")
        return None if content is None else content.body

    def write_layout(self, data: bytes) -> None:
        key = f"{self._store.options.root}{LAYOUT}"
        self._store.put(key, data, ContentType="application/json")

    def remove_layout(self) -> None:
        key = f"{self._store.options.root}{LAYOUT}"
        self._store.demand(f"removing {self._store.url(key)}", "delete_object", Key=key)

    def earlier_layout(self, incarnation: str) -> DirectoryLayout | None:
        found = self._records.find(incarnation)
        return None if found is None else found.stored.layout

    def has_files(self) -> bool:
        root = self._store.options.root
        return any(not is_hidden(key.removeprefix(root)) for key in self._store.keys(root))

    # --- the first epoch

    def check_existing(self, context: TargetContext[Any]) -> None:
        if self.overwrites:
            visible = (key.removeprefix(self._store.options.root) for key in self._keys_below())
            check_partitions(self.where, self._store.options, filterfalse(is_hidden, visible), self._step_id)
        check_existing(self, self._store.options.existing, self._step_id)

    def has_spark_log(self) -> bool:
        return next(self._store.keys(f"{self._store.options.root}{SPARK_LOG}/"), None) is not None

    def others(self) -> list[str]:
        return list(map(self._records.url, self._others()))

    def foreign(self) -> Iterator[str]:
        return filter(self._is_foreign, self._keys_below())

    def nested(self) -> Iterator[str]:
        """Yield the records above the prefix; `_keys_below` finds those below it.

        With `on_existing="resume"`, only the records of queries that are overwriting their prefix.
        """
        for root in self._roots_above():
            records = ObjectRecords(self._store, root)
            for incarnation in self._incarnations_above(records):
                if self._store.options.existing.others != "keep":
                    yield records.url(incarnation)
                    continue
                found = records.find(incarnation)
                if found is not None and not found.stored.opened:
                    yield records.url(incarnation)

    def _roots_above(self) -> Iterator[str]:
        """Yield the prefixes above this one whose readers would see its objects."""
        root = self._store.options.root
        levels = root.split("/")[:-1]
        for count in range(len(levels)):
            if not is_hidden("/".join([*levels[count:], "object"])):
                yield "".join(f"{level}/" for level in levels[:count])

    def _incarnations_above(self, records: ObjectRecords) -> list[str]:
        try:
            return records.incarnations()
        except TargetError as error:
            if status_of(error.__cause__) != 403:
                raise
            # A user who may list only this prefix writes no data above it.
            log.debug("prefixes above %s may not be listed", self.where)
            return []

    def _keys_below(self) -> Iterator[str]:
        """Yield all keys below the prefix. Raises `TargetNotEmptyError` for the record of a query inside it."""
        root = self._store.options.root
        for key in self._store.keys(root):
            match = _NESTED_RECORD.fullmatch(key, len(root))
            if match is not None and not is_hidden(f"{match[1]}object"):
                raise nested_targets(self.where, self._step_id, self._store.url(key))
            yield key

    def _others(self) -> list[str]:
        """Return the incarnations of other queries that write here or have written here."""
        return [each for each in self._records.incarnations() if each != self.incarnation]

    def _is_foreign(self, key: str) -> bool:
        """Return whether an object is visible to readers and was created by another writer."""
        name = AttemptName.parse(key, with_step=True)
        ours = name is not None and name.incarnation == self.incarnation
        return not ours and not is_hidden(key.removeprefix(self._store.options.root))

    # --- overwriting

    def delete_existing(self, context: TargetContext[Any]) -> None:
        # ObjectRecords first: a query that is about to publish then finds that its record is missing, and fails.
        self._stop_others()
        described, keys = self._replaced()
        # Again, for queries that started during the listing: their objects may be among the keys.
        self._stop_others()
        self.check_existing(context)
        if self.read() is None:
            raise removed(self, context)
        reached("s3: deleting existing")
        # Summaries first: without them, readers list the objects; with them, readers would miss objects.
        delete(self._store, [*described, *keys])
        if described or keys:
            log.warning(
                "step %r: on_existing=overwrite deleted %d objects below %s",
                self._step_id,
                len(described) + len(keys),
                self.where,
            )

    def _stop_others(self) -> None:
        for incarnation in self._others():
            self._records.remove(incarnation)
            reached("s3: others stopped")

    def _replaced(self) -> tuple[list[str], list[str]]:
        """List the keys to delete: summaries of the whole prefix, and objects of other writers."""
        root, ours = self._store.options.root, self.incarnation
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
