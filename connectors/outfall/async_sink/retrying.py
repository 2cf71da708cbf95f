"""Retry policy: the meaning of a failure, the pause before the next attempt, and when to give up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from outfall.errors import TerminalError, TransientError, ValueRefusedError
from outfall.retry_log import RetryLog

RETRIES = RetryLog(logging.getLogger(__name__))
"""The warnings of repeated checks and of requests for records."""


class ErrorAction(Enum):
    """The reaction to a failed request."""

    RETRY = "retry"
    """A transient failure: the entries are sent again."""
    FATAL = "fatal"
    """A permanent failure: the query fails."""
    DEAD_LETTER = "dead_letter"
    """One entry is at fault: the request is split until that entry is found, which becomes a dead letter."""


Classifier = Callable[[BaseException], ErrorAction | None]
"""Classifies an error, or returns `None` for an unknown error."""


def first_of(
    *classifiers: Classifier, otherwise: ErrorAction = ErrorAction.FATAL
) -> Callable[[BaseException], ErrorAction]:
    """Chain classifiers: the first one that does not return `None` decides.

    Args:
        classifiers: in the order in which they are called.
        otherwise: the result for errors that none of them classifies.
    """

    def classify(error: BaseException) -> ErrorAction:
        answers = (classifier(error) for classifier in classifiers)
        return next((answer for answer in answers if answer is not None), otherwise)

    return classify


def by_type(action: ErrorAction, *types: type[BaseException]) -> Classifier:
    """Create a classifier for errors of the given types."""
    return lambda error: action if isinstance(error, types) else None


def outfall_errors(error: BaseException) -> ErrorAction | None:
    """Classify Outfall's own errors by their base class."""
    if isinstance(error, ValueRefusedError):
        return ErrorAction.DEAD_LETTER
    if isinstance(error, TransientError):
        return ErrorAction.RETRY
    return ErrorAction.FATAL if isinstance(error, TerminalError) else None


def network_errors(error: BaseException) -> ErrorAction | None:
    """Classify Python's connection errors and timeouts as transient."""
    return ErrorAction.RETRY if isinstance(error, ConnectionError | TimeoutError) else None


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off with full jitter.

    The pause before the n-th retry is random between 0 and `base` · 2ⁿ⁻¹, at most `cap`. Of the strategies that spread
    clients after a common failure, it causes the least work (Marc Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015, https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """

    base: float = 0.1
    """Seconds."""
    cap: float = 20.0
    """Seconds."""

    def __post_init__(self) -> None:
        if not 0 < self.base <= self.cap:
            raise ValueError(f"a back-off needs 0 < base <= cap, not base {self.base}, cap {self.cap}")

    def pause(self, retry: int, random: Callable[[], float]) -> float:
        """Return the seconds before a retry.

        Args:
            retry: the number of the retry, from 1.
            random: returns numbers from 0 to below 1.
        """
        # The exponent is bounded because 2.0 ** 1024 is an error.
        return random() * min(self.cap, self.base * 2.0 ** min(retry - 1, 64))


@dataclass(frozen=True)
class RetryPolicy:
    """How often and for how long one entry is retried."""

    max_retries: int | None = None
    """`None` for no limit other than the deadline."""
    deadline: float | None = 300.0
    """Seconds after the first attempt. The limit that is reached first ends the retries."""
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.max_retries is None and self.deadline is None:
            raise ValueError("a retry policy needs max_retries or a deadline, else it never ends")
        if self.max_retries is not None and self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, not {self.max_retries}")
        if self.deadline is not None and self.deadline <= 0:
            raise ValueError(f"deadline must be positive, not {self.deadline}")

    def pause(self, tries: int, elapsed: float, random: Callable[[], float], *, at_least: float = 0.0) -> float | None:
        """Return the seconds before the next attempt, or `None` to give up now.

        It gives up instead of waiting for an attempt after the deadline. A pause that the destination requested is cut
        at the deadline instead, and one more attempt follows. The random pause is added to the requested one, so that
        clients do not return all at once.

        Args:
            tries: number of attempts so far, from 1.
            elapsed: seconds since the first attempt.
            random: returns numbers from 0 to below 1.
            at_least: the pause that the destination requested, in seconds.
        """
        if self.max_retries is not None and tries > self.max_retries:
            return None
        pause = at_least + self.backoff.pause(tries, random)
        left = float("inf") if self.deadline is None else self.deadline - elapsed
        if pause <= left:
            return pause
        return left if at_least > 0 and left > 0 else None
