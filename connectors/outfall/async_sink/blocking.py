"""A partition for a destination with a blocking client."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from outfall.async_sink.partition import AsyncSinkPartition
from outfall.async_sink.requests import Request, RequestOutcome, RequestResult
from outfall.async_sink.retrying import ErrorAction, first_of, network_errors, outfall_errors

E = TypeVar("E")


class BlockingSinkPartition(AsyncSinkPartition[E], Generic[E]):
    """Runs a blocking `send` in up to `max_in_flight_requests` threads. A light shim implements nothing else.

    Several threads call `send` concurrently, so everything that it uses must be thread-safe. It should have its own
    timeouts, shorter than `request_timeout`, because a hanging thread cannot be terminated.
    """

    classify: Callable[[BaseException], ErrorAction] = staticmethod(first_of(outfall_errors, network_errors))
    """Classifies an error that `send` raises. With `DEAD_LETTER` the request is split until the entry is found."""

    def __init__(self, sink: Any, **arguments: Any) -> None:
        """As `AsyncSinkPartition`."""
        super().__init__(sink, **arguments)
        self._workers = Workers(self.options.max_in_flight_requests)

    @abstractmethod
    def send(self, entries: Sequence[E]) -> RequestOutcome[E] | None:
        """Send one request and wait for its response.

        Called in a worker thread, in at most `max_in_flight_requests` at a time. It must not access the partition's
        state and must not retry.

        Returns:
            The outcome of the entries; `None` if all were accepted.

        Raises:
            Exception: `classify` determines the outcome of the entries.
        """

    def code_of(self, error: Exception) -> str:
        """Return the destination's code of an error that `send` raised, for dead letters. The default is its type."""
        return type(error).__name__

    def send_request(self, entries: Sequence[E], request: Request) -> RequestOutcome[E] | None:
        """Like `send`, with the request's id and number of failures. Override either."""
        return self.send(entries)

    def submit_request_entries(self, entries: Sequence[E], result: RequestResult[E]) -> None:
        self._workers.run(lambda: result.finish(self._outcome(entries, result.request)))

    def close(self) -> None:
        self._workers.close()
        super().close()

    def _outcome(self, entries: Sequence[E], request: Request) -> RequestOutcome[E]:
        try:
            return self.send_request(entries, request) or RequestOutcome()
        except Exception as error:
            return self._failed(entries, error)

    def _failed(self, entries: Sequence[E], error: Exception) -> RequestOutcome[E]:
        action = self.classify(error)
        if action is ErrorAction.FATAL:
            return RequestOutcome(error=error)
        reason = f"{type(error).__name__}: {error}"
        if action is ErrorAction.RETRY:
            return RequestOutcome(retry=entries, reason=reason)
        return RequestOutcome(split=entries, reason=reason, code=self.code_of(error))


Job = Callable[[], None]


class Workers:
    """A pool of daemon threads that are started on demand.

    Unlike the threads of `concurrent.futures`, a hanging thread does not keep the process alive. A closed pool starts
    no queued job.
    """

    def __init__(self, threads: int) -> None:
        """Start no thread yet.

        At most `threads` jobs run concurrently. As many threads again may hang without blocking others.
        """
        self._most = 2 * threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = Lock()
        self._idle = 0
        """Threads without a job, minus jobs without a thread."""
        self._threads = 0
        self._closed = False

    def run(self, job: Job) -> None:
        """Run a job in a thread. It must not raise."""
        with self._lock:
            start = self._idle <= 0 and self._threads < self._most
            if start:
                self._threads += 1
            else:
                self._idle -= 1
        self._jobs.put(job)
        if start:
            Thread(target=self._work, name="outfall-send", daemon=True).start()

    def close(self) -> None:
        """Let the threads end after their current job, without waiting."""
        self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed:
            job()
            with self._lock:
                self._idle += 1
