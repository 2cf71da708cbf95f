"""What an error means for the entries of its request."""

from __future__ import annotations

from collections.abc import Callable
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
