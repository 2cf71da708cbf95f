"""The one family of errors.

Every error says what happened, where (step, epoch, part), why, and what to do. None carries a secret.
A `TransientError` may succeed when the same call is made again; a `TerminalError` will not until somebody acts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self


class OutfallError(Exception):
    """Base of everything that Outfall raises on purpose.

    Args:
        what: what happened, one sentence without its full stop.
        step: the step's id, when known.
        epoch: the epoch's number, when known.
        part: the part's name, when known.
        why: the cause, one sentence without its full stop.
        do: what the reader can do about it, one sentence without its full stop.
    """

    def __init__(
        self,
        what: str,
        *,
        step: str | None = None,
        epoch: int | None = None,
        part: str | None = None,
        why: str | None = None,
        do: str | None = None,
    ) -> None:
        """Compose the text from its four parts."""
        sentences = [_where(step, epoch, part) + what, why, f"What to do: {do}" if do else None]
        super().__init__(" ".join(_sentence(text) for text in sentences if text))
        self.what = what
        self.why = why
        self.do = do
        self.step = step
        self.epoch = epoch
        self.part = part

    @classmethod
    def because_of(cls, error: BaseException, what: str, *, do: str | None = None, **where: Any) -> Self:
        """Make the error that another one led to, which says each thing once.

        Args:
            error: what led to it. One of our own is taken over with all that it says, and with its own cause.
            what: what happened, one sentence without its full stop.
            do: what to do about it where `error` does not say it.
            where: step, epoch and part, as far as known.
        """
        why, remedy = told(error)
        made = cls(what, why=why, do=remedy or do, **where)
        made.__cause__ = error.__cause__ if isinstance(error, OutfallError) else error
        for note in getattr(error, "__notes__", ()):
            made.add_note(note)
        return made

    def locate(self, *, step: str, epoch: int) -> None:
        """Say where it happened, in an error that does not say it: for who knows, of one who could not know.

        Args:
            step: the step's id.
            epoch: the epoch's number.
        """
        if self.step is None and self.epoch is None:
            self.step, self.epoch = step, epoch
            self.args = (_where(step, epoch, None) + str(self),)


def told(error: BaseException) -> tuple[str, str | None]:
    """Return what an error says has happened and why, without where, and what to do about it if it says so."""
    if not isinstance(error, OutfallError):
        return f"{type(error).__name__}: {error}", None
    return " ".join(_sentence(text) for text in (error.what, error.why) if text), error.do


def reason(error: BaseException | None) -> str:
    """Return why a query or job has failed in one line, without the stack traces that Spark puts around it.

    Takes whatever Spark raises and returns, on classic sessions and Connect: `query.exception()`, a
    `StreamingQueryException`, a `PythonException`, a `Py4JJavaError`, our own errors.

    Returns:
        The text of our error with its notes; of an error that is not ours the line that names it; nothing for `None`.
    """
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for found in chain:
        if isinstance(found, OutfallError):
            return " ".join([str(found), *getattr(found, "__notes__", ())])
    # Of what a classic session raises, a cause may stand in the stack trace alone.
    texts = [text for found in chain for text in (str(found), getattr(found, "_stackTrace", None) or "")]
    for pattern in (_OURS, _PYTHON):
        for text in texts:
            if lines := pattern.findall(text):
                return " ".join(lines[-1].split("\n")).strip()
    return next((line for text in texts for line in text.splitlines() if line.strip()), "")


_OURS = re.compile(r"^outfall(?:\.\w+)*\.[A-Z]\w*: (.*(?:\n(?![\s=]|JVM stacktrace:|Caused by: ).+)*)", re.MULTILINE)
"""One of our errors and its notes, at the end of a traceback: until more of a traceback, an empty line or what Spark
writes after it."""
_PYTHON = re.compile(r"^(?!org\.|java)(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?$", re.MULTILINE)


def _sentence(text: str) -> str:
    return text if text.endswith(("?", "!", "…")) else f"{text.rstrip('.')}."


def _where(step: str | None, epoch: int | None, part: str | None) -> str:
    places = [("step", step), ("epoch", epoch), ("part", part)]
    where = ", ".join(f"{name} {value!r}" for name, value in places if value is not None)
    return f"[{where}] " if where else ""


class TerminalError(OutfallError):
    """Trying again will not help; somebody has to act."""


class TransientError(OutfallError):
    """The same call may succeed later."""


class ConfigurationError(TerminalError):
    """An option, an argument or the shape of a sink is wrong. Raised before the first row moves."""


class CapabilityError(ConfigurationError):
    """A sink combines capabilities that do not go together, or lacks one that another needs."""


class SerializationError(TerminalError):
    """A state or committable cannot be turned into bytes, or bytes not into a value."""


class RecordError(TerminalError):
    """A recovery record is truncated, empty, of another step, or of a format this version does not read."""


class ForeignRecordsError(TerminalError):
    """The recovery data belongs to another query, sink kind or target."""


class FencedError(TerminalError):
    """A newer driver has taken this step over; this one must stop."""


class StaleWriterError(TerminalError):
    """A newer attempt has taken this part over, or the part is sealed; this attempt must stop."""


class UnexpectedEpochError(TerminalError):
    """Spark brings a batch id that the recovery data neither has last nor expects next."""


class PartsChangedError(TerminalError):
    """A part that has state is no longer listed by its sink."""


class ResponsesError(TerminalError):
    """The responses of the tasks do not fit together: two for one task or part, or of another epoch."""


class SealError(TransientError):
    """A part was written by somebody else than the recorded winner; the epoch has to run again."""


class TargetError(TerminalError):
    """The target is not what the recovery data says it is."""


class TargetNotEmptyError(TargetError):
    """First contact with a target that already holds somebody's data."""


class TargetLostError(TargetError):
    """The target lost what the recovery data says it has."""


class TargetAheadError(TargetError):
    """The target holds later epochs than the recovery data, as after a checkpoint restored from an older copy."""


class ReplayDiffersError(TargetError):
    """An epoch came again with other rows than the target already holds of it."""


class UnsharedTargetError(TargetError):
    """A task does not see the target that the driver sees."""


class CommitError(TransientError):
    """Committing did not finish. What is recorded will be committed by the next run."""


class CommitRefusedError(TerminalError):
    """The target refused a committable for a known reason."""


class LostCommittableError(TerminalError):
    """Data that was written and recorded is gone, and part of its epoch is or may be published."""


class EpochAbandonedError(TransientError):
    """Written data was lost before any of it was published; the epoch has to be written anew."""


class ValueRefusedError(TerminalError):
    """A row cannot be written as the format or the routing needs it."""


class StepInUseError(ConfigurationError):
    """The same step was written twice in one epoch."""


def raise_together(
    errors: Mapping[str, Exception], what: str, *, step: str | None = None, epoch: int | None = None
) -> None:
    """Raise what went wrong at several places at once, nothing if nothing did.

    Args:
        errors: by the name of each place that failed. A single one is raised as it is, with a note of the name.
        what: what failed, one sentence without its full stop.
        step: the step's id, when known.
        epoch: the epoch's number, when known.

    Raises:
        OutfallError: several failed: of their kind where it is one, else a `TransientError` if all are, else a
            `TerminalError`. The errors themselves are its cause, as an ExceptionGroup.
    """
    for name, error in errors.items():
        note = f"In the sink {name!r}."
        if name and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        if len(errors) == 1:
            raise error
    if errors:
        transient = all(isinstance(error, TransientError) for error in errors.values())
        family: type[OutfallError] = TransientError if transient else TerminalError
        kinds = {type(error) for error in errors.values()}
        for kind in kinds if len(kinds) == 1 else ():
            family = kind if issubclass(kind, OutfallError) else family
        parts = {name: told(error) for name, error in errors.items()}
        why = "; ".join(f"{name}: {text.rstrip('.')}" for name, (text, _) in parts.items())
        do = "; ".join(dict.fromkeys(f"{name}: {remedy}" for name, (_, remedy) in parts.items() if remedy))
        raise family(what, step=step, epoch=epoch, why=why, do=do) from ExceptionGroup(what, list(errors.values()))


def missing_extra(package: str, extra: str) -> ImportError:
    """Make the error for a connector whose optional dependency is not installed."""
    return ImportError(f"{package!r} is not installed. What to do: pip install 'outfall[{extra}]'.")
