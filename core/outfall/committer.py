"""Publishing: committers, and the requests that they resolve (Flink's `Committer` and `CommitRequest`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from outfall.errors import CapabilityError

C = TypeVar("C")


class CommitRequest(Generic[C]):
    """One committable offered to a committer. It ends as committed unless one of the signals says otherwise."""

    def __init__(self, committable: C, number_of_retries: int = 0) -> None:
        """Offer `committable`, after `number_of_retries` earlier offers."""
        self._committable = committable
        self._number_of_retries = number_of_retries
        self._outcome: CommitOutcome = CommitOutcome("unsignalled")

    @property
    def committable(self) -> C:
        """What is to be committed."""
        return self._committable

    @property
    def rows(self) -> int | None:
        """How many rows the committable stands for, where its `rows` says so."""
        committable: Any = self._committable
        rows = committable.get("rows") if isinstance(committable, Mapping) else getattr(committable, "rows", None)
        return rows if type(rows) is int else None

    @property
    def number_of_retries(self) -> int:
        """How often this committable was offered before."""
        return self._number_of_retries

    @property
    def outcome(self) -> CommitOutcome:
        """What was signalled."""
        return self._outcome

    def signal_committed(self) -> None:
        """Say that it is committed. Needed only for a strict committer; others commit by saying nothing."""
        self._outcome = CommitOutcome("committed")

    def signal_already_committed(self) -> None:
        """Say that an earlier try had committed it, as after a lost reply or a replay."""
        self._outcome = CommitOutcome("already committed")

    def retry_later(self, reason: str = "") -> None:
        """Ask to be offered it again, after a pause. The reason is for the log, without secrets."""
        self._outcome = CommitOutcome("retry", reason=reason)

    def update_and_retry_later(self, committable: C, reason: str = "") -> None:
        """Ask to be offered `committable` in its place, after a pause. The reason is for the log, without secrets."""
        self._committable = committable
        self._outcome = CommitOutcome("retry", reason=reason)

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """Say that it will never commit, for a reason the sink understands: it fails the query, or is dropped."""
        self._outcome = CommitOutcome("known failure", error)

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """Say that it failed for a reason the sink does not understand: fails the query."""
        self._outcome = CommitOutcome("unknown failure", error)

    def signal_lost(self, reason: str) -> None:
        """Say that the data behind it is gone although nothing of it was published.

        For an unlogged staging table emptied by a server's crash, or an upload taken by a lifecycle rule.
        """
        self._outcome = CommitOutcome("lost", reason=reason)

    def resolve_as(self, other: CommitRequest[Any], committable: C) -> None:
        """Take over what was signalled for another request. Called by a committer that hands its work on.

        Args:
            other: the request as it was handed on.
            committable: what `other` holds now, in the form that this request holds it.
        """
        self._committable = committable
        self._outcome = other.outcome

    def offer_again(self) -> None:
        """Clear the signal before the next offer. Called by the engine."""
        self._outcome = CommitOutcome("unsignalled")
        self._number_of_retries += 1


@dataclass(frozen=True)
class CommitOutcome:
    """What became of a commit request."""

    kind: str
    error: Exception | None = None
    reason: str = ""


class Committer(ABC, Generic[C]):
    """Publishes committables, on the driver, after they are recorded.

    Committing must be idempotent: after a crash the same committables are offered again, also by a second driver while
    the first still runs.
    """

    strict: bool = False
    """Whether each request must be resolved by a signal, so that saying nothing is an error."""

    def group(self, committable: C) -> str | None:
        """Return which share of the epoch a committable belongs to, for a committer whose shares stand alone.

        Each group is offered in a call of its own. A failure of one does not keep the others from being offered, and a
        group that is wholly committed is marked in the recovery data and never offered again. `None`: there are none.
        """
        return None

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Publish the committables of one epoch.

        Called with all requests, then again with those that asked for a retry, after a pause. A raised error counts as
        an unknown failure of the whole call.
        """

    def find_lost(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Signal each committable whose data is gone, without publishing any.

        Called when a driver finds recorded committables that nobody has begun to commit.
        """

    def revoke(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Make these committables unpublishable for ever, by anybody, before their epoch is written anew.

        Called when another committable of the epoch is lost and none was published. The default refuses.
        """
        raise CapabilityError(
            f"{type(self).__name__} cannot revoke committables, so an epoch that lost one cannot be written anew",
            do="implement Committer.revoke, or restore the lost data",
        )

    def nothing_published(self, requests: Sequence[CommitRequest[C]]) -> bool:
        """Tell from conclusive evidence in the target, read under a lock, that nothing of the epoch was published.

        Called when a committable is lost after committing has begun. The default has no evidence and says no.
        """
        return False

    def close(self) -> None:
        """Release resources. Called once, after errors too."""
