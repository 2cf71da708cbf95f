"""The last error of a step, stored next to its log as heartbeats are.

For users and monitoring: the protocol does not read it, and continues if it cannot be written. It remains until the
clean-up of a later epoch.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.errors import FencedError, OutfallError, cause_and_remedy, reason
from outfall.recovery.entries import Moment
from outfall.recovery.log import RecoveryConfig, heartbeat_name

_log = logging.getLogger(__name__)

DRIVER = "driver"
QUERY = "query"
"""Spark has ended the epoch, whose error the driver's Python process does not learn."""
_WAIT = 2.0
"""Maximum number of seconds to wait until an error is stored."""
_LONGEST = 1000
_OF_A_STOP = ("SPARK_JOB_CANCELLED", "java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException")
_CLASS = re.compile(r"[\w.]+(?=:|$)")


class Failure(BaseModel):
    """An error that ended the work of a task or of a query."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    who: str
    """`driver`, `query`, or `task 3`."""
    failed_in: int | None
    """The epoch; `None` if it was not known."""
    at: Moment
    """The time of the error, UTC."""
    error: str
    """The class of the error, and Spark's error condition if it has one. Empty if only Spark knows it."""
    reason: str
    """Event and cause, without secrets. Empty for an error of others, whose text may have contents of rows."""
    do: str | None
    """The remedy, if the error has one."""
    query_id: str | None = None
    """Spark's id of the query, if it was known."""


@contextmanager
def recorded(
    recovery: RecoveryConfig,
    step_id: str,
    who: str,
    epoch: int | None = None,
    *,
    query_id: str | None = None,
    readable: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Store an error that leaves the body as the last error of the step.

    `epoch` is the one of an error that names none. `readable` says after an error whether the log could be read. Not
    stored are errors of those who are fenced, since the step continues elsewhere, of others in tasks, and of a query
    that is stopped.
    """
    try:
        yield
    except Exception as error:
        with suppress(Exception):  # what describes an error of others may fail itself
            failure = _failure(error, who, epoch)
            if failure is not None and readable():
                record(recovery, step_id, failure.model_copy(update={"query_id": query_id}))
        raise


def record(recovery: RecoveryConfig, step_id: str, failure: Failure) -> None:
    """Store a failure as the last error of a step that has begun. Waits at most two seconds, and never raises."""

    def work() -> None:
        try:
            with closing(recovery.open(step_id)) as log:
                if log.numbers():  # else it may be the wrong location, and the error is before the user's eyes
                    log.set_heartbeat(_name(failure), failure.model_dump_json().encode())
        except Exception:
            _log.debug("step %s: its error cannot be stored", step_id, exc_info=True)

    # The store may be the one that is down.
    thread = threading.Thread(target=work, name="outfall-failure", daemon=True)
    thread.start()
    thread.join(_WAIT)


def query_ended(epoch: int | None) -> Failure:
    """Return the failure of a query of which only Spark knows the error."""
    return Failure(who=QUERY, failed_in=epoch, at=datetime.now(UTC), error="", reason="", do=None)


def ends_the_query(failures: Collection[Failure]) -> bool:
    """Return whether failures since the newest entry mean that the query or job has failed.

    Spark may repeat a task. It also ends the epoch of a query that is stopped, but then no task has failed.
    """
    who = {failure.who.partition(" ")[0] for failure in failures}
    return DRIVER in who or who == {QUERY, "task"}


def failures_in(stored: Iterable[bytes]) -> list[Failure]:
    """Return the failures among what is stored next to a log, the newest last."""
    found = []
    for data in stored:
        try:
            found.append(Failure.model_validate_json(data))
        except ValidationError:
            continue  # a heartbeat, or one that is being written
    return sorted(found, key=lambda failure: failure.at)


def _name(failure: Failure) -> str:
    # One for all tasks. The first generation, so that the clean-up of a later one removes it.
    return heartbeat_name(f"{failure.who.partition(' ')[0]}-error", 1)


def _failure(error: Exception, who: str, epoch: int | None) -> Failure | None:
    said = _said(error, who)
    if said is None:
        return None
    name, why, do = said
    named = getattr(error, "epoch", None)
    return Failure(
        who=who,
        failed_in=epoch if named is None else named,
        at=datetime.now(UTC),
        error=name,
        reason=why[:_LONGEST],
        do=do,
    )


def _said(error: Exception, who: str) -> tuple[str, str, str | None] | None:
    """Return class, reason and remedy of an error; `None` for one that is not stored."""
    if isinstance(error, FencedError):
        return None
    if isinstance(error, OutfallError):
        what, do = cause_and_remedy(error)
        if do is None:  # of an error of a task, Spark passes on the text alone
            what, _, advice = what.partition(" What to do: ")
            do = advice.removesuffix(".") or None
        cause = error.__cause__
        # The text of an error of others that a sink has raised may have contents of rows.
        foreign = cause is not None and error.why == cause_and_remedy(cause)[0]
        return type(error).__name__, f"{error.what}: {type(cause).__name__}" if foreign else what, do
    if who != DRIVER:
        return None
    name, condition = type(error).__name__, _condition(error)
    if any(sign in f"{condition} {error}" for sign in _OF_A_STOP):
        return None
    if name == "PythonException" and (python := _CLASS.match(reason(error))):
        name = python[0]
    return f"{name} ({condition})" if condition else name, "", None


def _condition(error: Exception) -> str | None:
    """Return the error condition of an error of Spark, which has another name in Spark 3.5."""
    for name in ("getCondition", "getErrorClass"):
        if (asked := getattr(error, name, None)) is not None:
            return str(found) if (found := asked()) else None
    return None
