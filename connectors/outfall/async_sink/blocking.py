"""A partition whose destination is asked by a call that blocks."""

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
    """Runs a blocking `send` in `max_in_flight_requests` threads: all that a light shim has to write.

    `send` is called by several threads at a time, so what it uses must bear that. It should have timeouts of its own,
    shorter than `request_timeout`: a thread that hangs cannot be ended.
    """

    classify: Callable[[BaseException], ErrorAction] = staticmethod(first_of(outfall_errors, network_errors))
    """What an error that `send` raises means. Of `DEAD_LETTER` the request is split until the entry is found."""

    def __init__(self, sink: Any, **arguments: Any) -> None:
        """As `AsyncSinkPartition`."""
        super().__init__(sink, **arguments)
        self._workers = Workers(self.options.max_in_flight_requests)

    @abstractmethod
    def send(self, entries: Sequence[E]) -> RequestOutcome[E] | None:
        """Send one request and wait for its answer.

        Called in a thread of its own, for at most `max_in_flight_requests` at a time; must not touch the partition's
        state and must not retry.

        Returns:
            What became of the entries; `None` when all were accepted.

        Raises:
            Exception: `classify` says what it means for the entries.
        """

    def code_of(self, error: Exception) -> str:
        """Return the destination's code in an error that `send` raised, for dead letters. The default is its type."""
        return type(error).__name__

    def send_request(self, entries: Sequence[E], request: Request) -> RequestOutcome[E] | None:
        """As `send`, with the request's id and how often it failed before. Override either."""
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
    """A pool of daemon threads, each started when it is first needed.

    Unlike those of `concurrent.futures` a thread that hangs does not keep the process from ending, and a closed pool
    starts nothing that waits in its queue.
    """

    def __init__(self, threads: int) -> None:
        """Start none yet.

        Args:
            threads: how many jobs run at a time. As many again may hang without holding up others.
        """
        self._most = 2 * threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = Lock()
        self._idle = 0
        """Threads without a job, less the jobs without a thread."""
        self._threads = 0
        self._closed = False

    def run(self, job: Job) -> None:
        """Run a job in some thread. It must not raise."""
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
        """Let the threads end after their present job. Nothing is waited for."""
        self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed:
            job()
            with self._lock:
                self._idle += 1
