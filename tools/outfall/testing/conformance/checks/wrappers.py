"""The wrappers of Outfall around the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfall.capability_checks import resolve
from outfall.errors import CapabilityError, ConfigurationError
from outfall.testing.conformance.discarding import DiscardingSink
from outfall.testing.conformance.faults import check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.trial import Wrapper
from outfall.testing.conformance.trials import Trials
from outfall.wrappers import BatchingSink, DeadLetteringSink, ExactlyOnceSink, FanOutSink

_VERSIONS = ([[(0, 0)], []], [[], [(0, 1), (1, 1), (2, 1)]], [[(1, 2)], []])
"""By epoch and task: the rows by number and version. A row that waits from the first epoch on is replaced meanwhile."""
_NEWEST = [(0, 1), (1, 2), (2, 1)]


@check
def in_wrappers(trials: Trials) -> None:
    """In a wrapper, such as `BatchingSink`, rows of the sink are missing or duplicated, or older ones replace newer."""
    for name, wrapper in _wrappers(trials.harness.row(0)).items():
        if _accepts(wrapper, trials.sink):
            with when(f"the sink was in {name}"):
                _write_new_rows(trials, wrapper)
                if gives(trials.harness, "replacing_row"):
                    _replace_rows(trials, wrapper)


def _accepts(wrapper: Wrapper, sink: Any) -> bool:
    try:
        wrapper(sink)
    except (CapabilityError, ConfigurationError):
        return False
    return True


def _wrappers(row: Any) -> dict[str, Wrapper]:
    wrappers: dict[str, Wrapper] = {
        "FanOutSink": lambda sink: FanOutSink(out=sink, other=DiscardingSink()),
        "BatchingSink": lambda sink: BatchingSink(sink, batch_size=2),
        "DeadLetteringSink": lambda sink: DeadLetteringSink(sink, DiscardingSink()),
    }
    if isinstance(row, Mapping):
        wrappers["BatchingSink with across_epochs"] = lambda sink: BatchingSink(sink, batch_size=3, across_epochs=True)
        offsets = [name for name, value in row.items() if type(value) is int]
        if offsets:
            wrappers["ExactlyOnceSink"] = lambda sink: _exactly_once(sink, offsets[0], row)
    return wrappers


def _exactly_once(sink: Any, offset: str, row: Mapping[str, Any]) -> Any:
    """Each row counts as a source partition of its own, so that any rows have increasing offsets."""
    resolved = resolve(sink)
    source = [name for name, value in row.items() if type(value) in (int, str)]
    parts = len(resolved.sink.list_parts()) if resolved.fixed else 2
    return ExactlyOnceSink(sink, offset=offset, source_partition=source, parts=parts)


def _write_new_rows(trials: Trials, wrapper: Wrapper) -> None:
    """Write three epochs with other tasks each time, one of which is recorded by another driver."""
    trial = trials.new(wrapper=wrapper)
    for tasks in (2, 3, 1):
        content = trial.bring(trial.epoch, rows=4, tasks=tasks)
        if tasks == 3:
            trial.run_until("after PREPARED", content)
        trial.run(trial.driver(), content)
    trial.drain()
    trial.verify()


def _replace_rows(trials: Trials, wrapper: Wrapper) -> None:
    """Write rows that replace each other from other tasks, and drain. The newest must remain."""
    trial = trials.new(wrapper=wrapper)
    for epoch, tasks in enumerate(_VERSIONS):
        trial.note(trial.driver().run_epoch(epoch, list(map(trial.replacing, tasks))), Content(epoch, ()))
    trial.drain()
    trial.verify_newest(
        _NEWEST,
        do="return True in DeclaresGuarantee.replaces_rows, so that wrappers reject the sink that hold rows back",
    )
