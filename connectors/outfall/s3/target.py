"""What lies below the prefix, as the recovery data knows it: checked before an epoch begins, and opened once it has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

from outfall.capabilities import TargetContext
from outfall.errors import TargetAheadError, TargetLostError, TargetNotEmptyError
from outfall.s3.manifest import Manifests
from outfall.s3.marker import Markers
from outfall.s3.names import SPARK_LOG, SUMMARIES, ObjectName, is_hidden
from outfall.s3.pieces import delete, key_of
from outfall.s3.store import Store
from outfall.steps import reached

log = logging.getLogger(__name__)


class Target:
    """One step's prefix in one epoch. Used on the driver.

    There are no locks. What must not happen twice at once, taking possession, is announced first and looked at after:
    of two queries that come at the same moment one or both are refused.
    """

    def __init__(self, store: Store, context: TargetContext[Any]) -> None:
        self._store = store
        self._context = context
        self._markers = Markers(store)
        self._manifests = Manifests(store)

    def check(self) -> None:
        """Refuse a prefix that is not what the recovery data says, and change nothing.

        Raises:
            TargetNotEmptyError, TargetLostError, TargetAheadError.
        """
        context = self._context
        if context.incarnation:
            self._check_ours()
        # Until an epoch is completed, also with our marker there: whoever wrote it may have died before this check.
        if context.completed is None:
            self._check_existing()

    def open(self) -> None:
        """Make the marker, if it is not there; with `on_existing="overwrite"` delete first what others left.

        Raises:
            TargetNotEmptyError: another query came at the same moment.
        """
        context = self._context
        marker = self._markers.read(context.incarnation)
        if marker is not None:
            if self._store.options.rolls and marker.generation < context.generation:
                # Pieces go without anything being published, and recovery data from before must not go on without them.
                self._markers.write(marker.advanced(context.generation, marker.epoch))
            return
        reached("s3: opening")
        if self._store.options.on_existing == "overwrite":
            self._delete_existing()
        self._markers.make(context.incarnation, context.step_id)
        try:
            self._check_existing()
        except TargetNotEmptyError:
            self._markers.remove(context.incarnation)
            raise

    def _check_ours(self) -> None:
        context = self._context
        marker = self._markers.read(context.incarnation)
        last = -1 if context.completed is None else context.completed
        if marker is None and context.completed is not None:
            raise TargetLostError(
                f"{self._store.options.url()} does not hold what was written there up to epoch {context.completed}",
                step=context.step_id,
                why=f"the marker {self._store.url(self._markers.key(context.incarnation))} is missing: the objects were"
                " deleted, or overwritten by another query",
                do="restore the objects, or start the query with a new checkpoint",
            )
        if marker is not None and (marker.generation > context.last_generation or marker.epoch > last):
            raise self._ahead(f"generation {marker.generation} has published epoch {marker.epoch}")
        later = self._manifests.later(context.incarnation, last)
        if later is not None:
            raise self._ahead(f"there is {self._store.url(later)}")

    def _ahead(self, found: str) -> TargetAheadError:
        context = self._context
        return TargetAheadError(
            f"{self._store.options.url()} is ahead of the recovery data: {found}",
            step=context.step_id,
            epoch=context.epoch,
            why=f"the recovery data ends at generation {context.last_generation}, completed epoch {context.completed}:"
            " it was restored from an older copy, or its newest entries are lost",
            do="restore the newest recovery data; or delete the later epochs' objects, whose manifests name them, and"
            " start with a new checkpoint",
        )

    def _check_existing(self) -> None:
        on_existing = self._store.options.on_existing
        if on_existing != "overwrite" and next(self._spark_log(), None) is not None:
            raise TargetNotEmptyError(
                f"{self._store.options.url()} holds {SPARK_LOG}, the log of Spark's own streaming file sink",
                step=self._context.step_id,
                why="Spark reads only the objects that this log lists, so that rows written beside them would not be"
                " seen",
                do="name another prefix; or stop the query that writes there, and delete the log to keep its objects"
                ' (also those of epochs that it did not complete), or set on_existing="overwrite" to delete the log and'
                " the objects",
            )
        if on_existing != "error":
            return
        found = list(islice(self._of_others(), 3))
        others = [name for name in self._markers.incarnations() if name != self._context.incarnation]
        if not found and not others:
            return
        raise TargetNotEmptyError(
            f"{self._store.options.url()} is not empty",
            step=self._context.step_id,
            why=f"it holds {', '.join(found)}"
            if found
            else f"another query writes there: {self._store.url(self._markers.key(others[0]))}",
            do='delete the objects (with those below _outfall/), name another prefix, or set on_existing="resume" to'
            ' keep what is there or on_existing="overwrite" to delete it',
        )

    def _spark_log(self) -> Iterator[str]:
        """Yield the keys of the log of Spark's own sink."""
        return iter(self._store.keys(f"{self._store.options.root}{SPARK_LOG}/"))

    def _of_others(self) -> Iterator[str]:
        """Yield the keys that readers see and that are not ours."""
        root = self._store.options.root
        for key in self._store.keys(root):
            name = ObjectName.parse(key)
            ours = name is not None and name.incarnation == self._context.incarnation
            if not ours and not is_hidden(key.removeprefix(root)):
                yield key

    def _delete_existing(self) -> None:
        """Delete what others left. Our own objects are spared: another driver of this step may have been faster."""
        for incarnation in self._markers.incarnations():
            if incarnation != self._context.incarnation:
                # Markers first: a query that is about to publish finds its marker gone and stops.
                self._markers.remove(incarnation)
        own = self._manifests.key(self._context.incarnation, 0).rpartition("/")[0]
        root = self._store.options.root
        # What others say of the prefix goes first: without it readers list the objects, and with it they miss some.
        keys = [*self._spark_log(), *(key for key in self._store.keys(f"{root}_") if key[len(root) :] in SUMMARIES)]
        keys += [*self._of_others(), *(key for key in self._manifests.all() if not key.startswith(f"{own}/"))]
        pieces = key_of(self._store, "")
        keys += (key for key in self._store.keys(pieces) if not key.startswith(f"{pieces}{self._context.incarnation}/"))
        delete(self._store, keys)
        if keys:
            log.warning(
                "step %r: on_existing=overwrite deleted %d objects below %s",
                self._context.step_id,
                len(keys),
                self._store.options.url(),
            )
