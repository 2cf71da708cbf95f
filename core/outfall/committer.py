"""Two-phase commit: committers, the requests that they resolve, and the sinks that have them (Flink's names).

Public as part of `outfall.capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from outfall.contexts import CommittableMessage, CommitterInitContext
from outfall.errors import CapabilityError
from outfall.serde import SimpleVersionedSerializer

C = TypeVar("C")
W = TypeVar("W")
C_co = TypeVar("C_co", covariant=True)


class CommitRequest(Generic[C]):
    """A committable for a committer. It counts as committed unless a signal method is called."""

    def __init__(self, committable: C, number_of_retries: int = 0) -> None:
        """Wrap `committable`, which was passed to the committer `number_of_retries` times before."""
        self._committable = committable
        self._number_of_retries = number_of_retries
        self._outcome: CommitOutcome = CommitOutcome("unsignalled")

    @property
    def committable(self) -> C:
        """The committable to commit."""
        return self._committable

    @property
    def rows(self) -> int | None:
        """The number of rows of the committable, if it has an attribute or key `rows`."""
        committable: Any = self._committable
        rows = committable.get("rows") if isinstance(committable, Mapping) else getattr(committable, "rows", None)
        return rows if type(rows) is int else None

    @property
    def number_of_retries(self) -> int:
        """How often this committable was passed to the committer before."""
        return self._number_of_retries

    @property
    def outcome(self) -> CommitOutcome:
        """The signaled outcome."""
        return self._outcome

    def signal_committed(self) -> None:
        """Signal that it is committed. Only a strict committer must call this; for others it is the default."""
        self._outcome = CommitOutcome("committed")

    def signal_already_committed(self) -> None:
        """Signal that an earlier attempt has committed it, for example before a lost response or a replay."""
        self._outcome = CommitOutcome("already committed")

    def retry_later(self, reason: str = "") -> None:
        """Request a retry after a pause. The reason is logged and must not contain secrets."""
        self._outcome = CommitOutcome("retry", reason=reason)

    def update_and_retry_later(self, committable: C, reason: str = "") -> None:
        """Request a retry with `committable` instead, after a pause. The reason must not contain secrets."""
        self._committable = committable
        self._outcome = CommitOutcome("retry", reason=reason)

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """Signal a permanent failure with a known reason. The query fails, or the committable is dropped."""
        self._outcome = CommitOutcome("known failure", error)

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """Signal a failure with an unknown reason. The query fails."""
        self._outcome = CommitOutcome("unknown failure", error)

    def signal_lost(self, reason: str) -> None:
        """Signal that the data of the committable is missing and that none of it was published.

        For example, a server crash emptied an unlogged staging table, or a lifecycle rule removed an upload.
        """
        self._outcome = CommitOutcome("lost", reason=reason)

    def resolve_as(self, other: CommitRequest[Any], committable: C) -> None:
        """Adopt the outcome of another request. Called by a committer that delegates to another one.

        Args:
            other: The request that was passed on.
            committable: The current committable of `other`, in the form of this request.
        """
        self._committable = committable
        self._outcome = other.outcome

    def offer_again(self) -> None:
        """Clear the signal before the next attempt. Called by the engine."""
        self._outcome = CommitOutcome("unsignalled")
        self._number_of_retries += 1


@dataclass(frozen=True)
class CommitOutcome:
    """The outcome of a commit request."""

    kind: str
    error: Exception | None = None
    reason: str = ""


class Committer(ABC, Generic[C]):
    """Publishes committables on the driver, after they are recorded.

    Commits must be idempotent. After a crash, the committer gets the same committables again. A second driver may
    commit them while the first one still runs.
    """

    strict: bool = False
    """Whether each request must be resolved by a signal. A request without one is then an error."""

    at_once: int = 1
    """How many groups may be committed at the same time, each in a thread of its own."""

    def group(self, committable: C) -> str | None:
        """Return the group of a committable, for a committer with independent groups. `None`: there are no groups.

        Each group is committed in a call of its own, even after another group has failed. The recovery data marks a
        group that is completely committed, and the committer does not get it again.
        """
        return None

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Publish the committables of one epoch.

        Called with all requests, then after a pause with those that requested a retry. A raised error counts as an
        unknown failure of all requests of the call.
        """

    def find_lost(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Signal each committable whose data is missing, and publish none.

        Called if a driver finds recorded committables whose commit has not begun.
        """

    def revoke(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Make these committables permanently unpublishable for all drivers, before their epoch is written again.

        Called if another committable of the epoch is lost and none was published.

        Raises:
            CapabilityError: the committer does not override this method.
        """
        raise CapabilityError(
            f"{type(self).__name__} cannot revoke committables, so an epoch with a lost one cannot be written again",
            do="implement Committer.revoke, or restore the lost data",
        )

    def nothing_published(self, requests: Sequence[CommitRequest[C]]) -> bool:
        """Return whether the target proves that no data of the epoch was published. Reads the target under a lock.

        Called if a committable is lost after the commit has begun. The default returns false.
        """
        return False

    def close(self) -> None:
        """Release resources. Called once, also after errors."""


class SupportsCommitter(ABC, Generic[C]):
    """On a sink: two-phase commit. Its partitions must be `CommittingSinkPartition`s."""

    @abstractmethod
    def create_committer(self, context: CommitterInitContext) -> Committer[C]:
        """Return the committer of one epoch. Called on the driver."""

    @abstractmethod
    def committable_serializer(self) -> SimpleVersionedSerializer[C]:
        """Return the serializer that the recovery data stores committables with."""


@runtime_checkable
class CommittingSinkPartition(Protocol[C_co]):
    """On a partition: returns committables for data that is written but not yet visible."""

    def prepare_commit(self) -> Sequence[C_co]:
        """Finish writing and return the committables, as a list or tuple.

        Called once per epoch in the task, after the last flush and before the snapshot. The data of the committables
        must be durable and invisible. The partition gets no values afterwards.
        """


class SupportsPreCommitTopology(ABC, Generic[W, C]):
    """On a committing sink: turns the write results of the tasks into committables, of any type and number."""

    @abstractmethod
    def add_pre_commit_topology(self, results: Sequence[CommittableMessage[W]]) -> Sequence[CommittableMessage[C]]:
        """Combine write results. Called on the driver after all tasks have returned, before anything is recorded.

        Both the results and the return value may be empty. The current epoch replaces the epoch of each returned
        message. The method must be idempotent.
        """

    @abstractmethod
    def write_result_serializer(self) -> SimpleVersionedSerializer[W]:
        """Return the serializer that carries write results from task to driver."""


class SupportsPostCommitTopology(ABC, Generic[C]):
    """On a committing sink: acts on committed data, for example to compact it."""

    @abstractmethod
    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[C]]) -> None:
        """Act on the epoch's committables. Called on the driver after all are resolved, and again after a crash."""
