"""Heartbeats: what a task or a driver tries again, beside the log, which gets no entry while they do.

For people and monitoring: no step of the protocol reads one, and a step that cannot write its own goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.recovery.log import RecoveryConfig, RecoveryLog, heartbeat_name
from outfall.retry_log import Retry, watched_by

_log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two writes of one heartbeat, at least."""
STALE = 90.0
"""Seconds after which a heartbeat is of nobody that still tries: three times the longest wait between two tries."""
_LEAVING = 2.0
"""Seconds for which a write that is under way is waited for at the end."""
_REASON = 1000

Phase: TypeAlias = Literal["begin", "tasks", "commit"]


class Heartbeat(BaseModel):
    """What is tried again, by whom and since when."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    who: str
    """`driver`, or `task 3`."""
    generation: int
    """The number of the BEGIN that it works under: before an epoch begins, of the last one."""
    epoch: int | None
    """`None` before the epoch is known."""
    phase: Phase
    since: datetime
    """When the first try failed, UTC."""
    at: datetime
    """When the last one failed, UTC."""
    attempts: int
    """How many have failed since then."""
    place: str
    """What has the outage, without credentials."""
    doing: str
    """What failed last."""
    reason: str
    """Why, without secrets."""


def read_heartbeats(log: RecoveryLog, *, generation: int, now: datetime) -> list[Heartbeat]:
    """Return who tries something again, or did until its process died, within the last 90 seconds.

    Never raises: a store that fails, and what is no heartbeat, give none.

    Args:
        log: where they lie.
        generation: the newest; those of older ones are of no account.
        now: the time, UTC.
    """
    try:
        found = [_decoded(data) for data in log.heartbeats()]
    except Exception:
        _log.debug("heartbeats cannot be read", exc_info=True)
        return []
    fresh = [beat for beat in found if beat is not None and beat.generation >= generation and not _is_stale(beat, now)]
    return sorted(fresh, key=lambda beat: (beat.since, beat.who))


def remove_stale(log: RecoveryLog, *, now: datetime) -> None:
    """Remove the heartbeats of processes that died while they tried again. For `outfall gc`: no epoch may come.

    Args:
        log: where they lie.
        now: the time, UTC.

    Raises:
        OutfallError: the store failed.
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
    """Write a heartbeat while the body runs, from the first retry that this thread makes in it.

    It is removed where the body ends without an error; after an error it stays, and says why, until it is stale or
    cleaned up.

    Args:
        recovery: where the log is.
        step_id: the step.
        who: as in `Heartbeat`.
        phase: as in `Heartbeat`.
        place: returns generation and epoch.
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
    """Writes in a thread of its own, on a log of its own: the store may be what has the outage."""

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
        """Take note of a retry; the first starts the thread."""
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
        """Write for the last time, or remove what was written. Waits for at most some seconds."""
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
        """Write what is new, then wait for more; returns whether there may be more."""
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
