"""Open partitions: how one is opened, what it can do, and how it gets rows. Used by tasks and by wrappers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from outfall.capabilities import (
    SupportsArrow,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsDeadLetterSink,
    SupportsFlush,
    SupportsSparkWriter,
    SupportsWriterContext,
    SupportsWriterState,
    WriterInitContext,
)
from outfall.capability_checks import ResolvedSink, capabilities_of
from outfall.errors import CapabilityError
from outfall.values import to_batch, to_values

_log = logging.getLogger(__name__)

Rows: TypeAlias = pa.RecordBatch | list[Any]
"""Rows, or values without a batch."""


@dataclass(frozen=True)
class ResolvedPartition:
    """An open partition and what it can do. Made once, when it is opened."""

    partition: Any
    capabilities: frozenset[type]
    takes_values: bool
    """Whether it has `write_batch`. A partition with `SupportsArrow` may omit it."""
    flush_takes: Literal["end_of_input", "nothing", "something else"] | None
    """The argument of its `flush`; `None` if it has none."""

    def write(self, rows: Rows, value_column: str | None) -> None:
        """Write rows in the form that the partition takes. `value_column` has the sink's values; `None` for rows."""
        if not isinstance(rows, pa.RecordBatch):
            if self.takes_values:
                self.partition.write_batch(rows)
            else:
                self.partition.write_record_batch(to_batch(rows, value_column))
        elif SupportsArrow in self.capabilities:
            self.partition.write_record_batch(rows)
        else:
            self.partition.write_batch(to_values(rows, value_column))

    def flush(self, *, end_of_input: bool) -> None:
        """Flush a partition that buffers values. Does nothing for a partition without `flush`.

        A `flush` without arguments, as in some Bytewax partitions, is assumed to send all values.
        """
        if self.flush_takes == "nothing":
            self.partition.flush()
        elif self.flush_takes is not None:
            self.partition.flush(end_of_input=end_of_input)


def resolve_partition(partition: Any) -> ResolvedPartition:
    """Find out what an open partition of any class can do."""
    capabilities = capabilities_of(partition)
    takes_values = callable(getattr(partition, "write_batch", None))
    return ResolvedPartition(partition, capabilities, takes_values, _flush_takes(partition, capabilities))


def _flush_takes(
    partition: Any, capabilities: frozenset[type]
) -> Literal["end_of_input", "nothing", "something else"] | None:
    if SupportsFlush not in capabilities:
        return None
    try:
        signature = inspect.signature(partition.flush)
    except ValueError:  # a builtin without a signature
        return "end_of_input"
    with suppress(TypeError):
        signature.bind(end_of_input=True)
        return "end_of_input"
    with suppress(TypeError):
        signature.bind()
        return "nothing"
    return "something else"


def open_partition(
    resolved: ResolvedSink,
    context: WriterInitContext,
    *,
    states: Mapping[str, Any] | None = None,
    recovered: Sequence[Any] = (),
) -> ResolvedPartition:
    """Open the part of the context with its `states` by name, or a writer of a dynamic sink with `recovered` states.

    Raises `CapabilityError` if the partition lacks a method that the sink's capabilities require. It is then closed.
    """
    partition = _build(resolved, context, states or {}, recovered)
    try:
        opened = resolve_partition(partition)
        check_partition(resolved, opened)
    except BaseException:
        try:
            partition.close()
        except Exception:
            _log.warning("closing a %s failed, too", type(partition).__name__, exc_info=True)
        raise
    return opened


def _build(
    resolved: ResolvedSink, context: WriterInitContext, states: Mapping[str, Any], recovered: Sequence[Any]
) -> Any:
    sink = resolved.sink
    if SupportsWriterContext in resolved.capabilities:
        sink = sink.bind(context)
    if resolved.fixed:
        part = context.part or ""
        return sink.build_part(context.step_id, part, resolved.resume_state(part, states))
    if recovered and SupportsWriterState in resolved.capabilities:
        return sink.restore_writer(context, recovered)
    return sink.build(context.step_id, context.worker_index, context.worker_count)


def check_partition(resolved: ResolvedSink, opened: ResolvedPartition) -> None:
    """Check an open partition against the capabilities of its sink, before the first row is written.

    Raises `CapabilityError` if a method is missing or has the wrong signature.
    """
    partition, has = opened.partition, resolved.capabilities
    by_spark = SupportsSparkWriter in has
    needed = ["write_batch"] if SupportsArrow not in opened.capabilities and not by_spark else []
    needed += ["snapshot"] if resolved.fixed else []
    needed += [method for capability, method in _NEEDED.items() if capability in has]
    for method in needed:
        if not callable(getattr(partition, method, None)):
            raise CapabilityError(
                f"{resolved.name} built a {type(partition).__name__} that has no {method}()",
                do=f"add {method}() to the partition, or drop the capability that requires it from the sink",
            )
    takes = opened.flush_takes
    if takes == "something else" or (takes == "nothing" and SupportsBufferedRows in has):
        raise CapabilityError(
            f"{resolved.name} built a {type(partition).__name__} whose flush() does not take end_of_input",
            do="define it as flush(self, end_of_input: bool), or rename it",
        )


_NEEDED: dict[type, str] = {
    SupportsCommitter: "prepare_commit",
    SupportsDeadLetterSink: "dead_letters_to",
    SupportsBufferedRows: "flush",
    SupportsSparkWriter: "write_frame",
    SupportsWriterState: "snapshot_state",
}
"""The methods that a capability of the sink requires of its partitions."""
