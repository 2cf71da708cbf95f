"""Stored values: serialization of states and committables, and secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from outfall.capability_checks import ResolvedSink
from outfall.errors import SerializationError
from outfall.recovery import recovery_config
from outfall.serde import SimpleVersionedSerializer
from outfall.testing.conformance.faults import ConformanceError, check
from outfall.testing.conformance.spying import Probe, probing
from outfall.testing.conformance.stepping import at_step
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials


class _Stored(Probe):
    """Records states and committables of the sink."""

    def __init__(self) -> None:
        self.values: list[tuple[str, Any]] = []

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        result = super().around(method, args, call)
        if method == "snapshot":
            self.values.append(("state", result))
        elif method == "snapshot_state":
            self.values += [("writer state", state) for state in result]
        elif method == "prepare_commit":
            self.values += [("committable", value) for value in result]
        return result


def _stored(trials: Trials) -> list[tuple[str, Any, SimpleVersionedSerializer[Any]]]:
    """Return states and committables of some epochs, including an empty one, with their serializers."""
    trial = trials.new()
    with probing(_Stored()) as probe:
        trial.run_epochs(2)
        trial.run(trial.driver(), trial.bring_numbers(2, [[], trial.new_numbers(1)]))
    trials.needs(bool(probe.values), "the sink has neither states nor committables")
    return [item for what, value in probe.values for item in _with_serializers(trials.resolved, what, value)]


def _with_serializers(
    resolved: ResolvedSink, what: str, value: Any
) -> list[tuple[str, Any, SimpleVersionedSerializer[Any]]]:
    if what == "writer state":
        return [(what, value, resolved.sink.writer_state_serializer())]
    if what == "committable":
        return [(what, value, resolved.hand_over_serializer())]
    # All parts use the same serializer, so the part does not matter.
    states = resolved.states_after("", value)
    return [(what, state, resolved.state_serializer(name)) for name, state in states.items()]


@check
def stored_values_come_back(trials: Trials) -> None:
    """A state or committable changes when it is stored and read again."""
    for what, value, serializer in _stored(trials):
        data = serializer.serialize(value)
        again = serializer.deserialize(serializer.version, data)
        if type(again) is not type(value) or not _equal(again, value, serializer):
            raise ConformanceError(
                f"the {what} {value!r} was deserialized as {again!r}",
                do="deserialize(version, serialize(value)) must return the same value with the same type",
            )


def _equal(again: Any, value: Any, serializer: SimpleVersionedSerializer[Any]) -> bool:
    """Compare values; if their type compares by identity, compare their bytes."""
    if "__eq__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}:
        return serializer.serialize(again) == serializer.serialize(value)
    return bool(again == value)


@check
def unknown_version_is_refused(trials: Trials) -> None:
    """A state or committable of a newer version is read as if it had the current version."""
    for what, value, serializer in _stored(trials):
        data = serializer.serialize(value)
        for version in (serializer.version + 1, 0):
            _refuses(serializer, version, data, f"the {what}'s serializer read version {version}")


@check
def damaged_bytes_are_refused(trials: Trials) -> None:
    """A damaged state or committable is read as another value."""
    for what, _, serializer in _stored(trials):
        for data in (b"\xff\xfe\x00damaged", b""):
            _refuses(serializer, serializer.version, data, f"the {what}'s serializer read {data!r}")


def _refuses(serializer: SimpleVersionedSerializer[Any], version: int, data: bytes, fault: str) -> None:
    try:
        value = serializer.deserialize(version, data)
    except SerializationError:
        return
    except Exception as error:
        raise ConformanceError(
            f"{fault}, and raised {type(error).__name__}", do="raise outfall.errors.SerializationError"
        ) from error
    raise ConformanceError(f"{fault} as {value!r}", do="raise outfall.errors.SerializationError")


@check
def no_secret_comes_out(trials: Trials) -> None:
    """A secret option appears in an error, a log line, the sink's repr or the recovery data."""
    trials.needs(bool(trials.harness.secrets), "the test names no secrets")
    trial = trials.new()
    texts: list[tuple[str, str]] = [("the sink's repr", repr(trials.sink)), ("the sink's text", str(trials.sink))]
    with _logged() as lines:
        _go_wrong(trial, texts)
        trial.finish()
    texts += [("a line of the log", line) for line in lines]
    log = recovery_config(trial.recovery).open("sink")
    texts += [("the recovery data", entry.data.decode(errors="replace")) for entry in log.read()]
    for place, text in texts:
        for secret in trials.harness.secrets:
            if secret in text:
                raise ConformanceError(
                    f"a secret appears in {place}: {text.replace(secret, '******')[:200]}",
                    do="store it in a pydantic SecretStr, and never format an option of the sink into a string",
                )


def _go_wrong(trial: Trial, texts: list[tuple[str, str]]) -> None:
    """Provoke errors, and collect their texts."""
    trial.run_epochs(1)
    for step in ("sink: before write_batch", "task: after write", "before commit", "sink: before committer.commit"):
        with at_step(step, _raise):
            _note(lambda: trial.run(trial.driver(), trial.bring(trial.epoch)), texts)
    _note(lambda: trial.driver().run_epoch(99, []), texts)
    with suppress(NotImplementedError), trial.harness.breaking(trial.target):
        _note(lambda: trial.run(trial.driver(), trial.bring(trial.epoch)), texts)


def _raise() -> None:
    raise RuntimeError("injected")


def _note(action: Callable[[], Any], texts: list[tuple[str, str]]) -> None:
    try:
        action()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            texts.append((f"a {type(cause).__name__}", f"{cause!s} {cause!r}"))
            cause = cause.__cause__ or cause.__context__


class _Collecting(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect all log lines in the block, at every level."""
    root, handler = logging.getLogger(), _Collecting(logging.DEBUG)
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield handler.lines
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
