"""The committer of data that is staged piece by piece: files and objects. Each store says how it publishes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from typing import Generic, TypeVar

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, LostCommittableError
from outfall.retry_log import watch_thread, watcher

C = TypeVar("C")


class Found(Enum):
    """What exists under the name at which a committable is published."""

    NOTHING = auto()
    OURS = auto()
    CHANGED = auto()
    """Ours, with another content."""
    OTHERS = auto()


class Obstacle(Enum):
    """Why a committable was not published."""

    NOT_DONE = auto()
    """A transient failure: nothing was published."""
    INCOMPLETE = auto()
    """A part of the staged data is missing."""
    UNCLEAR = auto()
    """Its name exists, it is no longer staged, or it is unknown whether it was published."""


class NotPublishedError(Exception):
    """A committable was not published, as far as its store knows. The committer determines its outcome."""

    def __init__(self, obstacle: Obstacle, reason: str = "") -> None:
        super().__init__(reason)
        self.obstacle = obstacle
        self.reason = reason


class StagingArea(ABC, Generic[C]):
    """Staged data of one epoch, and the names under which it is published. Its methods are called in threads."""

    context: CommitterInitContext
    parallel: int = 1
    """The maximum number of threads."""
    noun: str
    """The name of one piece: file, object."""
    foreign: str
    """How data of another writer is recognized, for errors."""

    @abstractmethod
    def publishing(self, staged: Sequence[C]) -> AbstractContextManager[object]:
        """Record that the epoch is being published, before the first piece, and make its end durable."""

    def reading(self) -> AbstractContextManager[object]:
        """Translate errors while missing data is looked for."""
        return nullcontext()

    def revoking(self) -> AbstractContextManager[object]:
        """Translate errors while data is revoked, and make it durable at the end."""
        return nullcontext()

    @abstractmethod
    def publish(self, staged: C) -> None:
        """Publish once, without retries and without replacing anything.

        Raises `NotPublishedError` if it was not published or this is unknown, and `CommitRefusedError` if it was
        changed, in staging or after it was published.
        """

    @abstractmethod
    def look(self, staged: C) -> Found:
        """Return what has its published name."""

    @abstractmethod
    def is_staged(self, staged: C) -> bool:
        """Whether it can still be published."""

    @abstractmethod
    def unstage(self, staged: C) -> bool:
        """Remove it from staging; return whether it was there, so that it is certainly not published."""

    @abstractmethod
    def url(self, staged: C) -> str:
        """Return its published name, for messages."""

    @abstractmethod
    def why_missing(self, staged: C) -> str:
        """Return the reason of a loss: it is neither staged nor published."""


class StorageCommitter(Committer[C]):
    """Publishes staged data under its visible name, and never replaces anything.

    A name belongs to one attempt and is never reused, so a publication can be repeated: if two drivers publish the same
    epoch at once, the second one finds its data published. If the outcome of a publication is unknown, it is looked up.

    A loss after the commit has begun is final: data that was never published cannot be distinguished from published
    data that was deleted.
    """

    strict = True

    def __init__(self, staging: StagingArea[C]) -> None:
        self._staging = staging

    def commit(self, requests: Sequence[CommitRequest[C]]) -> None:
        # In each round, because a driver that was paused may have been replaced in the meantime.
        with self._staging.publishing([request.committable for request in requests]):
            self._each(self._publish, requests)

    def find_lost(self, requests: Sequence[CommitRequest[C]]) -> None:
        with self._staging.reading():
            self._each(self._find_lost, requests)

    def revoke(self, requests: Sequence[CommitRequest[C]]) -> None:
        with self._staging.revoking():
            self._each(self._revoke, requests)

    def _each(self, action: Callable[[CommitRequest[C]], None], requests: Sequence[CommitRequest[C]]) -> None:
        threads = min(self._staging.parallel, len(requests))
        if threads <= 1:
            for request in requests:
                action(request)
            return
        with ThreadPoolExecutor(threads, "outfall-publish", watch_thread, (watcher(),)) as pool:
            for done in [pool.submit(action, request) for request in requests]:
                done.result()

    def _publish(self, request: CommitRequest[C]) -> None:
        try:
            self._staging.publish(request.committable)
        except CommitRefusedError as error:
            request.signal_failed_with_known_reason(error)
        except NotPublishedError as error:
            self._resolve(request, error)
        else:
            request.signal_committed()

    def _resolve(self, request: CommitRequest[C], failure: NotPublishedError) -> None:
        """Determine the outcome of a failed publication, and signal it."""
        staging, staged = self._staging, request.committable
        if failure.obstacle is Obstacle.NOT_DONE:
            request.retry_later(failure.reason)
            return
        found = staging.look(staged)
        if found is Found.OURS:
            request.signal_already_committed()
        elif failure.obstacle is Obstacle.INCOMPLETE:
            request.signal_lost(failure.reason)
        elif found is Found.CHANGED:  # another driver has just published it; the next attempt finds how it is
            request.retry_later(failure.reason)
        elif staging.is_staged(staged):
            if found is Found.OTHERS:
                request.signal_failed_with_known_reason(self._foreign(staged))
            else:
                request.retry_later(failure.reason)
        elif staging.look(staged) is Found.OURS:  # another driver has published it since the first look
            request.signal_already_committed()
        else:
            request.signal_lost(staging.why_missing(staged))

    def _find_lost(self, request: CommitRequest[C]) -> None:
        staged = request.committable
        if not self._staging.is_staged(staged) and not self._is_published(staged):
            request.signal_lost(self._staging.why_missing(staged))

    def _revoke(self, request: CommitRequest[C]) -> None:
        staging, staged = self._staging, request.committable
        if not staging.unstage(staged) and self._is_published(staged):
            raise LostCommittableError(
                f"{staging.url(staged)} is already published and cannot be revoked",
                step=staging.context.step_id,
                epoch=staging.context.epoch,
                do=f"delete the {staging.noun}s of this epoch and start again, or restore the lost ones",
            )

    def _is_published(self, staged: C) -> bool:
        return self._staging.look(staged) in (Found.OURS, Found.CHANGED)

    def _foreign(self, staged: C) -> CommitRefusedError:
        staging = self._staging
        return CommitRefusedError(
            f"{staging.url(staged)} exists and was created by another writer",
            step=staging.context.step_id,
            epoch=staging.context.epoch,
            why=staging.foreign,
            do=f"find the writer, move the {staging.noun} to another location, and start the query again",
        )
