"""The errors that Outfall raises.

Every error states what happened, where (step, epoch, part), why, and what to do. No error text contains a secret.
A retry may succeed after a `TransientError`. After a `TerminalError` it fails again until the cause is fixed.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self


class OutfallError(Exception):
    """Base class of all errors of Outfall.

    Args:
        what: What happened, as one sentence without a full stop.
        step: The step id, if known.
        epoch: The epoch number, if known.
        part: The name of the part, if known.
        why: The cause, as one sentence without a full stop.
        do: The remedy, as one sentence without a full stop.
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
        """Compose the text from location, event, cause and remedy."""
        super().__init__(_sentences(_where(step, epoch, part) + what, why, f"What to do: {do}" if do else None))
        self.what = what
        self.why = why
        self.do = do
        self.step = step
        self.epoch = epoch
        self.part = part
        _escape_controls(sys.exception())

    @classmethod
    def because_of(cls, error: BaseException, what: str, *, do: str | None = None, **where: Any) -> Self:
        """Create an error of this class that was caused by another error, without repeating its text.

        Args:
            error: The cause. Event, cause and remedy of an `OutfallError` become part of the new text, and its own
                cause becomes the cause of the new error.
            what: What happened, as one sentence without a full stop.
            do: The remedy if `error` has none.
            where: `step`, `epoch` and `part`, as far as known.
        """
        why, remedy = cause_and_remedy(error)
        created = cls(what, why=why, do=remedy or do, **where)
        created.__cause__ = error.__cause__ if isinstance(error, OutfallError) else error
        for note in getattr(error, "__notes__", ()):
            created.add_note(note)
        return created

    def locate(self, *, step: str, epoch: int) -> None:
        """Add step and epoch to an error that was raised without them.

        Args:
            step: The step id.
            epoch: The epoch number.
        """
        if self.step is None and self.epoch is None:
            self.step, self.epoch = step, epoch
            self.args = (_where(step, epoch, None) + str(self),)


def cause_and_remedy(error: BaseException) -> tuple[str, str | None]:
    """Return event and cause of an error as one text without its location, and the remedy if it has one."""
    if not isinstance(error, OutfallError):
        return f"{type(error).__name__}: {error}", None
    return _sentences(error.what, error.why), error.do


def reason(error: BaseException | None) -> str:
    """Return in one line why a query or job has failed, without Spark's stack traces.

    Args:
        error: Any error that Spark raises or returns, on classic sessions and on Connect: the result of
            `query.exception()`, a `StreamingQueryException`, a `PythonException`, a `Py4JJavaError`, or an
            `OutfallError`.

    Returns:
        The text and the notes of the `OutfallError` in it. For any other error, the line with its class and message.
        An empty string for `None`.
    """
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for found in chain:
        if isinstance(found, OutfallError):
            return " ".join(" ".join([str(found), *getattr(found, "__notes__", ())]).splitlines())
    # On a classic session the cause may be in the stack trace only.
    texts = [text for found in chain for text in (str(found), getattr(found, "_stackTrace", None) or "")]
    for text in texts:
        if (ours := error_in(text)) is not None:
            return " ".join(str(ours).splitlines())
    for text in texts:
        if lines := _PYTHON.findall(text):
            return str(lines[-1]).strip()
    return next((line for text in texts for line in text.splitlines() if line.strip()), "")


def error_in(text: str) -> OutfallError | None:
    """Return the last `OutfallError` of which a text has the traceback, without that.

    Args:
        text: What Spark says about an error of a task or of a query.

    Returns:
        An error of the same class, or of the class of this module that it is derived from. Its text has the notes too.
        `None` if there is no such traceback.
    """
    found = _OURS.findall(text)
    if not found:
        return None
    module, name, said = found[-1]
    # A driver imports what its sink needs. Nothing is imported because of a text.
    raised = getattr(sys.modules.get(module), name, None)
    classes = raised.__mro__ if isinstance(raised, type) else ()
    own = next((each for each in classes if issubclass(each, OutfallError) and each.__module__ == __name__), None)
    return (own or OutfallError)(said.strip())


_OURS = re.compile(
    r"^(outfall(?:\.\w+)*)\.([A-Z]\w*): (.*(?:\n(?![\s=]|JVM stacktrace:|Caused by: ).+)*)", re.MULTILINE
)
"""An `OutfallError` and its notes at the end of a traceback. It ends at the next traceback, at an empty line, or at
the text that Spark appends."""
_PYTHON = re.compile(r"^(?!org\.|java)(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?$", re.MULTILINE)


def printable(text: str) -> str:
    r"""Return a text in which nothing controls a terminal or begins a line: `\n`, `\x1b` as in a Python literal.

    Every text that came from a row, a server or a log passes through it before it is printed or logged.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _escape_controls(error: BaseException | None) -> None:
    """Make the texts of a caught error and of its causes printable, because a traceback prints them too."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if any(isinstance(said, str) and not said.isprintable() for said in found.args):
            found.args = tuple(_CONTROLS.sub(_escaped, said) if isinstance(said, str) else said for said in found.args)
        waiting += [found.__cause__, found.__context__]


_CONTROLS = re.compile(r"[^\n\t -~]+")


def _escaped(found: re.Match[str]) -> str:
    return printable(found[0])


def _sentences(first: str, *others: str | None) -> str:
    # The causes that other libraries give often have several lines.
    rest = [_capitalized(" ".join(map(str.strip, other.splitlines()))) for other in others if other]
    return "\n".join(map(printable, " ".join(map(_sentence, [first, *rest])).split("\n")))


def _capitalized(text: str) -> str:
    is_word = re.match("[a-z]+,? ", text)  # not an identifier, which must stay as it is
    return text[0].upper() + text[1:] if is_word else text


def _sentence(text: str) -> str:
    return text if text.endswith(("?", "!", "…")) else f"{text.rstrip('.')}."


def _where(step: str | None, epoch: int | None, part: str | None) -> str:
    places = [("step", step), ("epoch", epoch), ("part", part)]
    where = ", ".join(f"{name} {value!r}" for name, value in places if value is not None)
    return f"[{where}] " if where else ""


class TerminalError(OutfallError):
    """Base class of errors that a retry cannot fix. The query fails until a user fixes the cause."""


class TransientError(OutfallError):
    """Base class of errors that may disappear on a retry, and raised itself if a destination is unreachable or busy.

    Spark retries the task or, after a restart of the query, the epoch. If the error persists, check the service that
    the text names.
    """


class ConfigurationError(TerminalError):
    """Raised if an option, an argument, a location or a column does not fit the sink.

    The checks run before the first row is written. A retry fails again: correct the value that the text names.
    """


class CapabilityError(ConfigurationError):
    """Raised if a sink combines capabilities that exclude each other, or lacks a method that a capability requires.

    A retry fails again. Add or remove what the text names.
    """


class SerializationError(TerminalError):
    """Raised if a state, a committable or a message cannot be serialized or deserialized.

    A retry fails again. Give the sink a serializer for its values. For a stored value, run the release that wrote it.
    """


class RecordError(TerminalError):
    """Raised if the recovery data is damaged, incomplete, of another step, or in a newer format.

    It is also raised if files of Spark's checkpoint that the batch depends on are damaged. A retry fails again. Restore
    the recovery data from a copy, run the newer release, or repair the checkpoint with `outfall repair`.
    """


class ForeignRecordsError(TerminalError):
    """Raised if the recovery data was written by another query, by another kind of sink, or for another target or key.

    A retry fails again. Undo the change, or use a new checkpoint or another `step_id`.
    """


class FencedError(TerminalError):
    """Raised if a newer driver has taken over the step, or a driver of a copied log has taken over the target.

    A retry fails again. Run only one of the two queries. If you need both, give each its own step or location.
    """


class StaleWriterError(TerminalError):
    """Raised if an attempt writes to a part that is sealed, or to a part or a key that a newer attempt has written.

    A retry of the same attempt fails again. If a newer run continues, do nothing. Otherwise restart the query.
    """


class UnexpectedEpochError(TerminalError):
    """Raised if Spark runs a batch id that is neither the last recorded one nor the next.

    A retry fails again. Restore checkpoint and recovery data from copies of the same time. To start an empty recovery
    log next to an existing checkpoint, set `adopt_checkpoint=True`.
    """


class PartsChangedError(TerminalError):
    """Raised if the sink no longer lists a part that has a state.

    A retry fails again. List the part again, or start with a new checkpoint and an empty target.
    """


class ResponsesError(TerminalError):
    """Raised if task results contradict each other: two for one task or part, or results of another epoch.

    No data of the epoch was published. Restart the query, and report the error.
    """


class SealError(TransientError):
    """Raised if the last writer of a part is not the attempt whose result the driver has.

    No data of the epoch is recorded. Restart the query: the epoch runs again.
    """


class TargetError(TerminalError):
    """Base class of errors about the target, and raised itself if the target is missing, unusable or denies access.

    A retry fails again. Fix the target or the permissions that the text names, and restart the query.
    """


class TargetNotEmptyError(TargetError):
    """Raised if a target already contains data of another writer on the first run of a query.

    A retry fails again. Use another target, set `on_existing` to `"resume"` or `"overwrite"`, or move the data away.
    """


class TargetLostError(TargetError):
    """Raised if the target lacks data that the recovery log records as written.

    A retry fails again. Restore the data, or start with a new checkpoint and an empty target.
    """


class TargetAheadError(TargetError):
    """Raised if the target contains later epochs than the recovery log, for example after a checkpoint was restored.

    A retry fails again. Restore the newer checkpoint, or set `on_rewind="truncate"` if the sink has that option.
    """


class ReplayDiffersError(TargetError):
    """Raised if the rows of a replayed epoch differ from those of this epoch in the target.

    A retry fails again unless the source replays the same rows. Fix the source, or choose a delivery mode that accepts
    any source.
    """


class UnsharedTargetError(TargetError):
    """Raised if a task does not see the target directory that the driver sees.

    A retry fails again on that host. Write to a path that all hosts share.
    """


class CommitError(TransientError):
    """Raised if committing exceeds its deadline or fails for an unknown reason.

    The committables are recorded. Fix the cause and restart the query: the next run commits them.
    """


class CommitRefusedError(TerminalError):
    """Raised if the target rejects a committable for a known reason.

    A retry fails again. Fix the target or the rows, and restart the query: it commits the recorded committables.
    """


class LostCommittableError(TerminalError):
    """Raised if recorded data is missing after a part of its epoch was published, or may have been.

    A retry fails again. Restore the data, or compare target and source and start with a new checkpoint.
    """


class EpochAbandonedError(TransientError):
    """Raised if written data is missing before any data of its epoch was published.

    The epoch is written again: the Python API does this at once, `format("outfall")` after a restart of the query.
    """


class ValueRefusedError(TerminalError):
    """Raised if a row cannot be written, for example a NULL key or a value that the format cannot represent.

    A retry fails again. Filter such rows out, convert the value, or set dead letters if the sink has them.
    """


class StepInUseError(ConfigurationError):
    """Raised if one step is written twice in one epoch.

    A retry fails again. Give each write in a `foreachBatch` function its own `step_id`.
    """


def raise_together(
    errors: Mapping[str, Exception], what: str, *, step: str | None = None, epoch: int | None = None
) -> None:
    """Raise the errors of several sinks as one. Does nothing if there are none.

    Args:
        errors: The errors by the name of their sink. A single error is raised unchanged, with the name as a note.
        what: What failed, as one sentence without a full stop.
        step: The step id, if known.
        epoch: The epoch number, if known.

    Raises:
        OutfallError: Several sinks failed. Its class is theirs if they agree, else `TransientError` if all errors are
            transient, else `TerminalError`. Its cause is an `ExceptionGroup` of the errors.
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
        parts = {name: cause_and_remedy(error) for name, error in errors.items()}
        why = "; ".join(f"{name}: {text.rstrip('.')}" for name, (text, _) in parts.items())
        do = "; ".join(dict.fromkeys(f"{name}: {remedy}" for name, (_, remedy) in parts.items() if remedy))
        raise family(what, step=step, epoch=epoch, why=why, do=do) from ExceptionGroup(what, list(errors.values()))


def require_extra(extra: str, *modules: str) -> None:
    """Raise `ImportError` for the first of these modules that is not installed. The text names the extra of Outfall."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"{module!r} is not installed. What to do: pip install 'outfall[{extra}]'.")
