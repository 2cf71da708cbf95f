"""Repeats a call after transient errors, until a deadline. Each repetition is reported to a `RetryLog`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from outfall.errors import TransientError
from outfall.first_contact import fails_at_once, patience
from outfall.retry_log import Retry, RetryLog

T = TypeVar("T")


def retried(
    call: Callable[[], T],
    *,
    passes: Callable[[BaseException], bool],
    deadline: float,
    first_wait: float = 0.2,
    longest_wait: float = 10,
    log: RetryLog | None = None,
    describe: Callable[[BaseException], Retry] | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Call until it succeeds, and return the result.

    Pauses are exponential with full jitter (Marc Brooker, "Exponential Backoff And Jitter", AWS 2015). A pause has at
    most `first_wait` seconds, which doubles with each attempt up to `longest_wait`. The deadline is in seconds from the
    start of the first attempt. An attempt that fails after it is the last one; a pause may end after it.

    `passes` says whether an error is transient. Raises the error of the last attempt: permanent, or the first one after
    the deadline. `describe` is called with the error before each pause, and returns what is logged. It is required with
    `log`, without which retries are silent.

    At the first contact of a step, `outfall.first_contact` shortens the deadline, and wrong addresses are permanent.
    """
    started, deadline = now(), patience(deadline)

    def warn(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if log is not None and describe is not None and error is not None:
            at, failed = now(), describe(error)
            log.retry(
                failed.place, failed.doing, attempt=state.attempt_number, reason=failed.reason,
                left=started + deadline - at, now=at,
            )  # fmt: skip

    def pause(seconds: float) -> None:
        sleep(seconds)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: passes(error) and not fails_at_once(error)),
        wait=tenacity.wait_random_exponential(multiplier=first_wait, max=longest_wait),
        stop=lambda _: now() - started >= deadline,
        sleep=pause,
        before_sleep=warn,
        reraise=True,
    )
    return retrying(call)


def patiently(log: RetryLog, where: str, doing: str, call: Callable[[], T], deadline: float) -> T:
    """Repeat a call after a `TransientError`, for `deadline` seconds. `where` and `doing` are for warnings."""
    return retried(
        call,
        passes=lambda error: isinstance(error, TransientError),
        deadline=deadline,
        first_wait=0.1,
        longest_wait=5.0,
        log=log,
        describe=lambda error: Retry(where, doing, str(error)),
    )
