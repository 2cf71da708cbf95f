"""Heartbeats of tasks and drivers during retries, stored next to the log, which gets no entry meanwhile.

For users and monitoring: the protocol does not read heartbeats, and continues if it cannot write one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.recovery.entries import Count, Moment
from outfall.recovery.log import RecoveryConfig, RecoveryLog, heartbeat_name
from outfall.retry_log import Retry, watched_by

_log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Minimum number of seconds between two writes of one heartbeat."""
STALE = 90.0
"""Seconds after which a heartbeat is stale: three times the longest pause between two retries."""
_LEAVING = 2.0
"""Maximum number of seconds to wait for a running write at the end."""
_REASON = 1000

Phase: TypeAlias = Literal["begin", "tasks", "commit"]


class Heartbeat(BaseModel):
    """A retried operation, its process, and its duration."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    who: str
    """`driver`, or `task 3`."""
    generation: int
    """The number of its BEGIN, or of the last one before an epoch begins."""
    epoch: int | None
    """`None` before the epoch is known."""
    phase: Phase
    since: Moment
    """The time of the first failed attempt, UTC."""
    at: Moment
    """The time of the last failed attempt, UTC."""
    attempts: Count
    """The number of failed attempts since then."""
    place: str
    """The server, bucket or step with the outage, without credentials."""
    doing: str
    """The operation that failed last."""
    reason: str
    """The reason, without secrets."""


def stored_beside(log: RecoveryLog) -> list[bytes]:
    """Return the heartbeats and failures that are stored next to a log; none if the store fails. Never raises."""
    try:
        return log.heartbeats()
    except Exception:
        _log.debug("heartbeats cannot be read", exc_info=True)
        return []


def heartbeats_in(stored: Iterable[bytes], *, generation: int, now: datetime) -> list[Heartbeat]:
    """Return the heartbeats of the last 90 seconds, of processes that retry or died while retrying.

    `generation` is the newest one; older heartbeats are ignored, as are invalid ones. `now` is in UTC.
    """
    found = map(_decoded, stored)
    fresh = [beat for beat in found if beat is not None and beat.generation >= generation and not _is_stale(beat, now)]
    return sorted(fresh, key=lambda beat: (beat.since, beat.who))


def remove_stale(log: RecoveryLog, *, now: datetime) -> None:
    """Remove the heartbeats of processes that died while retrying. For `outfall gc`, because no epoch may follow.

    `now` is in UTC. Raises `OutfallError` if the store failed.
    """
    for beat in map(_decoded, log.heartbeats()):
        if beat is not None and _is_stale(beat, now):
            log.set_heartbeat(heartbeat_name(beat.who, beat.generation), None)


def _is_stale(beat: Heartbeat, now: datetime) -> bool:
    return (now - beat.at).total_seconds() >= STALE


def _decoded(data: bytes) -> Heartbeat | None:
    try:
        return Heartbeat.model_validate_json(data)
    except ValidationError:
        return None


@contextmanager
def heartbeat(
    recovery: RecoveryConfig, step_id: str, who: str, phase: Phase, place: Callable[[], tuple[int, int | None]]
) -> Iterator[None]:
    """Write a heartbeat while the body runs, from the first retry of this thread on.

    It is removed if the body ends without an error. After an error it remains with the reason until it is stale or
    cleaned up. `place` returns generation and epoch; `who` and `phase` are as in `Heartbeat`.
    """
    writer = _Writer(recovery, step_id, who, phase, place)
    try:
        with watched_by(writer.note):
            yield
    except BaseException:
        writer.leave(remove=False)
        raise
    writer.leave(remove=True)


class _Writer:
    """Writes in its own thread and to its own log object, because the store may have the outage."""

    def __init__(
        self,
        recovery: RecoveryConfig,
        step_id: str,
        who: str,
        phase: Phase,
        place: Callable[[], tuple[int, int | None]],
    ) -> None:
        self._recovery = recovery
        self._step_id = step_id
        self._who = who
        self._phase: Phase = phase
        self._place = place
        self._changed = threading.Condition()
        self._newest: Heartbeat | None = None
        self._written: Heartbeat | None = None
        self._left = self._remove = False
        self._thread: threading.Thread | None = None

    def note(self, retry: Retry) -> None:
        """Record a retry. The first one starts the thread."""
        now = datetime.now(UTC)
        generation, epoch = self._place()
        with self._changed:
            before = self._newest
            self._newest = Heartbeat(
                who=self._who,
                generation=generation,
                epoch=epoch,
                phase=self._phase,
                since=before.since if before else now,
                at=now,
                attempts=before.attempts + 1 if before else 1,
                place=retry.place,
                doing=retry.doing,
                reason=retry.reason[:_REASON],
            )
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outfall-heartbeat", daemon=True)
                self._thread.start()

    def leave(self, *, remove: bool) -> None:
        """Write or remove the heartbeat a last time. Waits at most a few seconds."""
        if self._thread is None:
            return
        with self._changed:
            self._left, self._remove = True, remove
            self._changed.notify()
        self._thread.join(_LEAVING)

    def _run(self) -> None:
        more = True
        while more:
            try:
                with closing(self._recovery.open(self._step_id)) as log:
                    while more:
                        more = self._write(log)
            except Exception:
                _log.debug("step %s: a heartbeat cannot be written", self._step_id, exc_info=True)
                more = not self._leaves_within(INTERVAL)

    def _write(self, log: RecoveryLog) -> bool:
        """Write the newest retry, then wait for another one. Return whether there may be one."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or self._newest is not self._written)
            left, remove, newest = self._left, self._remove, self._newest
        if newest is not None and (newest is not self._written or remove):
            name = heartbeat_name(self._who, newest.generation)
            log.set_heartbeat(name, None if remove else newest.model_dump_json().encode())
            self._written = newest
        if not left:
            self._leaves_within(INTERVAL)
        return not left

    def _leaves_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._left, seconds)
