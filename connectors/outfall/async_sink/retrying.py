"""What a failed request means for its entries, how long to wait before the next try, and when to give up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from outfall.errors import TerminalError, TransientError, ValueRefusedError


class ErrorAction(Enum):
    """What is done about a request that failed."""

    RETRY = "retry"
    """It may pass: the entries are sent again."""
    FATAL = "fatal"
    """It will not pass: the query stops."""
    DEAD_LETTER = "dead_letter"
    """It is one of the entries: the request is split until the entry is found, which becomes a dead letter."""


Classifier = Callable[[BaseException], ErrorAction | None]
"""Says what an error means, or `None` when it does not know the error."""


def first_of(
    *classifiers: Classifier, otherwise: ErrorAction = ErrorAction.FATAL
) -> Callable[[BaseException], ErrorAction]:
    """Chain classifiers: the first that knows an error decides.

    Args:
        classifiers: in the order in which they are asked.
        otherwise: for errors that none of them knows.
    """

    def classify(error: BaseException) -> ErrorAction:
        answers = (classifier(error) for classifier in classifiers)
        return next((answer for answer in answers if answer is not None), otherwise)

    return classify


def by_type(action: ErrorAction, *types: type[BaseException]) -> Classifier:
    """Make a classifier of the errors of some types."""
    return lambda error: action if isinstance(error, types) else None


def outfall_errors(error: BaseException) -> ErrorAction | None:
    """Classify our own errors by the branch of the family they stand in."""
    if isinstance(error, ValueRefusedError):
        return ErrorAction.DEAD_LETTER
    if isinstance(error, TransientError):
        return ErrorAction.RETRY
    return ErrorAction.FATAL if isinstance(error, TerminalError) else None


def network_errors(error: BaseException) -> ErrorAction | None:
    """Classify Python's own errors of connections and timeouts, which may pass."""
    return ErrorAction.RETRY if isinstance(error, ConnectionError | TimeoutError) else None


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off with full jitter.

    The pause before the n-th retry is random between 0 and `base` · 2ⁿ⁻¹, at most `cap`: of the ways to spread clients
    that failed together, the one with the least work (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
    Blog, 2015, https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
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
            retry: which retry it is, from 1.
            random: gives numbers from 0 to below 1.
        """
        # The exponent is bounded because 2.0 ** 1024 is an error.
        return random() * min(self.cap, self.base * 2.0 ** min(retry - 1, 64))


@dataclass(frozen=True)
class RetryPolicy:
    """How often and for how long one entry is tried again."""

    max_retries: int | None = None
    """`None` for as often as the deadline allows."""
    deadline: float | None = 300.0
    """Seconds after the first try. It beats `max_retries`."""
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.max_retries is None and self.deadline is None:
            raise ValueError("a retry policy needs max_retries or a deadline, or it never ends")
        if self.max_retries is not None and self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, not {self.max_retries}")
        if self.deadline is not None and self.deadline <= 0:
            raise ValueError(f"deadline must be longer than nothing, not {self.deadline}")

    def pause(self, tries: int, elapsed: float, random: Callable[[], float], *, at_least: float = 0.0) -> float | None:
        """Return how many seconds to wait before the next try, or `None` to give up now.

        It gives up rather than wait for a try that would come after the deadline; but what the destination asked for is
        cut there, so that a long pause still ends in one more try. What comes on top of it is the random pause, or all
        that were asked to wait would come back at once.

        Args:
            tries: how often it was tried, from 1.
            elapsed: seconds since the first try.
            random: gives numbers from 0 to below 1.
            at_least: the pause that the destination asked for, in seconds.
        """
        if self.max_retries is not None and tries > self.max_retries:
            return None
        pause = at_least + self.backoff.pause(tries, random)
        left = float("inf") if self.deadline is None else self.deadline - elapsed
        if pause <= left:
            return pause
        return left if at_least > 0 and left > 0 else None
