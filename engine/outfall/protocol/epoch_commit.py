"""From PREPARED to COMPLETED: publishes the recorded data, now or in a later run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import (
    CommitRequest,
    CommittableMessage,
    Committer,
    CommitterInitContext,
    Metrics,
    SupportsCommitter,
    SupportsPostCommitTopology,
)
from outfall.counters import TABLES, WIDEST_ROW
from outfall.errors import EpochAbandonedError, LostCommittableError
from outfall.protocol.commit_retry import CommitContext, CommitLoop, closing_committer
from outfall.protocol.step import Step
from outfall.protocol.target import clean_up_context, clean_up_target
from outfall.recovery.entries import Abandoned, Committed, Committing, Completed, Prepared, load_value
from outfall.trace_points import reached

_log = logging.getLogger(__name__)


_MOST_TABLES = 10
"""The tables of an epoch that its record names."""


class EpochCommit:
    """Publishes and completes one recorded epoch."""

    def __init__(self, step: Step, prepared: Prepared) -> None:
        """Prepare to finish the recorded epoch."""
        self._step = step
        self._sink = step.sink
        self._capabilities = step.capabilities
        self._step_id = step.step_id
        self._journal = step.journal
        self._prepared = prepared
        self._recorded: dict[str, Any] = {
            "step": step.step_id,
            "incarnation": prepared.incarnation,
            "epoch": prepared.epoch,
            "generation": prepared.generation,
        }
        """The common fields of the entries of this epoch."""
        self._metrics = Metrics(prepared.counts)
        self._requests: list[CommitRequest[Any]] = []
        self._published: set[str] = set()
        """The targets to which data of the epoch was published: see `Completed.published`."""
        self._started = step.clock.now()

    def resolve(self) -> bool:
        """Finish an epoch that an earlier run recorded, and return whether it is now completed.

        False means that data was lost before any was published, and the epoch must be written again. Raises
        `LostCommittableError` if data was lost, and part of the epoch is or may be published. Raises `EntryExistsError`
        if another driver has continued meanwhile.
        """
        _log.info("step %s: finishing recorded epoch %d", self._step_id, self._prepared.epoch)
        if not self._journal.view.committing and not self._all_there():
            return False
        try:
            self.publish()
        except EpochAbandonedError:
            return False
        return True

    def publish(self) -> Completed:
        """Commit, run the post-commit topology, record COMPLETED and clean up. Raises the errors of `CommitLoop.run`.

        If data was lost, raises `EpochAbandonedError` if the target proves that no data of the epoch was published, and
        `LostCommittableError` if part of it is or may be published. Raises `EntryExistsError` if another driver has
        continued meanwhile.
        """
        if SupportsCommitter in self._capabilities and self._prepared.committables:
            self._commit()
        self._follow_up()
        lost = self._journal.view.lost
        completed = self._record_completed()
        self._clean_up(lost)
        return completed

    def _commit(self) -> None:
        if not self._journal.view.committing:
            self._journal.append(Committing(**self._recorded))
        reached("after COMMITTING")
        _log.info(
            "step %s, epoch %d: committing %d committables",
            self._step_id,
            self._prepared.epoch,
            len(self._prepared.committables),
        )
        committer = self._committer()
        with closing_committer(committer):
            self._offer(committer)

    def _offer(self, committer: Committer[Any]) -> None:
        self._requests = self._load_requests()
        place = CommitContext(self._step_id, self._prepared.epoch)
        for request in self._requests:
            if committer.group(request.committable) in self._journal.view.committed:
                request.signal_committed()
        CommitLoop(
            committer,
            self._step.options.commit,
            place,
            clock=self._step.clock,
            metrics=self._metrics,
            on_committed=self._mark_committed,
        ).run(self._requests)
        lost = _lost(self._requests)
        if not lost:
            self._published = {
                committer.group(request.committable) or "" for request in self._requests if _is_published(request)
            }
            return
        if committer.nothing_published(self._requests):
            self._abandon(committer, self._requests)
            raise EpochAbandonedError(
                "written data was lost before any of it was published; the epoch must be written again",
                why=lost[0].outcome.reason,
                do="start the query again, unless it restarts automatically",
                **self._place(),
            )
        raise self._lost_for_good(lost)

    def _mark_committed(self, children: Sequence[str]) -> None:
        first, *others = children
        self._journal.append(Committed(child=first, others=tuple(others), **self._recorded))
        reached("after COMMITTED")

    def _all_there(self) -> bool:
        """Return whether all recorded data exists, before any is published. Abandon the epoch if not."""
        if SupportsCommitter not in self._capabilities or not self._prepared.committables:
            return True
        requests = self._load_requests()
        committer = self._committer()
        with closing_committer(committer):
            committer.find_lost(requests)
            if _lost(requests):
                self._abandon(committer, requests)
        return not _lost(requests)

    def _abandon(self, committer: Committer[Any], requests: Sequence[CommitRequest[Any]]) -> None:
        lost = _lost(requests)
        remaining = [request for request in requests if request.outcome.kind != "lost"]
        if remaining:
            committer.revoke(remaining)
        reached("after revoke")
        self._journal.append(Abandoned(reason=lost[0].outcome.reason, **self._recorded))
        reached("after ABANDONED")
        # Not before the append: data that a newer driver has cleaned up is not lost, and the append then fails.
        _log.warning(
            "step %s, epoch %d: %d of %d committables are lost and none is published; the epoch is written again (%s)",
            self._step_id,
            self._prepared.epoch,
            len(lost),
            len(requests),
            lost[0].outcome.reason,
        )

    def _lost_for_good(self, lost: Sequence[CommitRequest[Any]]) -> LostCommittableError:
        published = [request for request in self._requests if request.outcome.kind != "lost"]
        return LostCommittableError(
            f"{len(lost)} of {len(self._requests)} committables are lost, and others are or may be published",
            why=f"lost: {_names(lost)}; published: {_names(published)}",
            do="restore the lost data, or compare the target with the source and start with a new checkpoint",
            **self._place(),
        )

    def _follow_up(self) -> None:
        if SupportsPostCommitTopology in self._capabilities:
            requests = self._requests
            stored = self._prepared.committables
            epoch = self._prepared.epoch
            self._sink.add_post_commit_topology(
                [
                    CommittableMessage(request.committable, epoch, item.worker_index, item.part)
                    for request, item in zip(requests, stored, strict=True)
                    if _is_published(request)
                ]
            )
            reached("after post-commit")

    def _record_completed(self) -> Completed:
        reached("before COMPLETED")
        view = self._journal.view
        if view.widest_row and view.begin is not None and view.begin.columns == view.row_columns:
            self._metrics.peak(WIDEST_ROW, view.widest_row * 9 // 10)
        tables = self._metrics.tables
        if tables:
            self._metrics.peak(TABLES, len(tables))
        counts = self._metrics.counts
        task_seconds, commit_seconds = self._prepared.seconds, self._step.clock.now() - self._started
        totals = view.totals_with(
            counts
            | {
                "epochs": 1,
                "restarts": len(view.lost),
                "task_ms": round(1000 * task_seconds),
                "commit_ms": round(1000 * commit_seconds),
            }
        )
        entry = Completed(
            prepared=view.prepared,
            counts=counts,
            seconds=task_seconds + commit_seconds,
            task_seconds=task_seconds,
            guarantee="NONE" if totals.get("dropped_committables") else self._step.resolved.guarantee().name,
            drain=view.drain_unfinished,
            drains=view.drains,
            held_since=view.buffered.oldest,
            published={**view.published, **dict.fromkeys(self._published, self._prepared.epoch)},
            totals=totals,
            tables=dict(sorted(tables.items(), key=lambda table: (-table[1], table[0]))[:_MOST_TABLES]),
            **self._recorded,
        )
        self._journal.append(entry)
        reached("after COMPLETED")
        self._step.telemetry.count({name: total - view.totals.get(name, 0) for name, total in totals.items()})
        return entry

    def _clean_up(self, lost: Mapping[int, str]) -> None:
        """Remove leftovers. A failure is only logged: the epoch is complete, and the next clean-up retries."""
        view, log = self._journal.view, self._journal.log
        resolved, final = self._step.resolved, self._step.options.final
        clean_up_target(resolved, clean_up_context(resolved, self._step_id, view, log, lost=lost, final=final))
        try:
            self._journal.clean_up()
        except Exception:
            _log.warning("step %s: cleaning up the log failed; the next epoch retries it", self._step_id, exc_info=True)
        reached("after clean-up")

    def _committer(self) -> Committer[Any]:
        view = self._journal.view
        committer: Committer[Any] = self._sink.create_committer(
            CommitterInitContext(
                step_id=self._step_id,
                incarnation=self._prepared.incarnation,
                generation=self._prepared.generation,
                epoch=self._prepared.epoch,
                metrics=self._metrics,
                token=view.begun.get(self._prepared.generation, ""),
                begun=view.begun,
                published=view.published.get(""),
                children_published={name: epoch for name, epoch in view.published.items() if name},
            )
        )
        return committer

    def _load_requests(self) -> list[CommitRequest[Any]]:
        serializer, log = self._sink.committable_serializer(), self._journal.log
        return [CommitRequest(load_value(serializer, item.value, log=log)) for item in self._prepared.committables]

    def _place(self) -> dict[str, Any]:
        return {"step": self._step_id, "epoch": self._prepared.epoch}


def _is_published(request: CommitRequest[Any]) -> bool:
    return request.outcome.kind in {"committed", "already committed"}


def _lost(requests: Sequence[CommitRequest[Any]]) -> list[CommitRequest[Any]]:
    return [request for request in requests if request.outcome.kind == "lost"]


def _names(requests: Sequence[CommitRequest[Any]], most: int = 20) -> str:
    """List the first twenty committables."""
    listed = ", ".join(str(request.committable) for request in requests[:most])
    return listed + (f" and {len(requests) - most} more" if len(requests) > most else "") if requests else "none"
