"""`AsyncSink`: the description of a request/response destination."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from outfall.async_sink.buffer import BufferedRequests, BufferedRequestsSerializer
from outfall.async_sink.host_state import HostState, RetryBudget, shared_host_state
from outfall.async_sink.limiting import AimdLimiter, Limiter
from outfall.async_sink.options import AsyncSinkOptions
from outfall.async_sink.partition import AsyncSinkPartition
from outfall.async_sink.retrying import RETRIES
from outfall.capabilities import (
    BufferedRows,
    DeclaresGuarantee,
    Guarantee,
    SupportsBufferedRows,
    SupportsDeadLetterSink,
    SupportsWriterContext,
    SupportsWriterState,
    WriterInitContext,
    class_name,
    shown_name,
)
from outfall.retry_loop import patiently
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import DynamicSink

E = TypeVar("E")
T = TypeVar("T")


class AsyncSink(
    DynamicSink[Any],
    SupportsWriterContext,
    SupportsWriterState[Any, BufferedRequests[E]],
    SupportsBufferedRows[BufferedRequests[E]],
    SupportsDeadLetterSink,
    DeclaresGuarantee,
    Generic[E],
):
    """Base of sinks for request/response destinations; a shim derives from it and from `AsyncSinkPartition`.

    It holds options and opens nothing; `open` runs in a task. `E` is the type of a request entry.

    Its partitions report rejected records. `outfall.wrappers.DeadLetteringSink` stores them in another sink.

    Args:
        options: validated options, for example from `make_options`.
    """

    def __init__(self, options: AsyncSinkOptions) -> None:
        self.options = options

    def __repr__(self) -> str:
        return f"{shown_name(self)}({self.host()!r})"

    @abstractmethod
    def open(self) -> AsyncSinkPartition[E]:
        """Open a partition: `return MyPartition(self)`. Called in a task, once per attempt."""

    def host(self) -> Hashable:
        """Return the key that limits and pauses are shared by, among the tasks of one worker process.

        The default is the sink's class alone. A sink with an address returns the address, and never a secret.
        """
        return ""

    def key_columns(self) -> Sequence[str]:
        """Return the columns that identify a record, which errors and logs show with `log_rows="keys"`."""
        return ()

    def limiter(self) -> Limiter:
        """Create the limiter of a host. The default is Flink's: AIMD, in entries."""
        return AimdLimiter(self.options.max_batch_size * self.options.max_in_flight_requests)

    def entry_serializer(self) -> SimpleVersionedSerializer[E]:
        """Return the serializer of one entry, for `across_epochs`. The default is JSON."""
        return JsonSerializer()

    def host_state(self) -> HostState:
        """Return this process's state of the host."""
        key = (class_name(self), self.host(), self.options.model_dump_json(include=_SHARED))
        return shared_host_state(key, lambda: HostState(self.limiter(), RetryBudget(self.options.retry_budget)))

    def patiently(self, doing: str, call: Callable[[], T]) -> T:
        """Repeat a call after a `TransientError`, until `retry_deadline`. `doing` is the operation, for warnings."""
        return patiently(RETRIES, str(self.host()), doing, call, self.options.retry_deadline.total_seconds())

    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def requires(self) -> Sequence[str]:
        return ()

    def max_dead_letters(self) -> int:
        return self.options.max_dead_letters

    def build(self, step_id: str, worker_index: int, worker_count: int) -> AsyncSinkPartition[E]:
        return self.open()

    def keeps_writer_state(self) -> bool:
        return self.options.across_epochs

    def restore_writer(
        self, context: WriterInitContext, recovered: Sequence[BufferedRequests[E]]
    ) -> AsyncSinkPartition[E]:
        partition = self.open()
        for state in recovered:
            partition.restore(state)
        return partition

    def buffered_rows(self, state: BufferedRequests[E]) -> BufferedRows:
        return BufferedRows(len(state.entries), state.oldest)

    def max_time_in_buffer(self) -> timedelta:
        return timedelta(milliseconds=self.options.max_time_in_buffer_ms)

    def writer_state_serializer(self) -> SimpleVersionedSerializer[BufferedRequests[E]]:
        return BufferedRequestsSerializer(self.entry_serializer())


_SHARED = {"max_batch_size", "max_in_flight_requests", "retry_budget"}
"""The options that the state of a host depends on."""
