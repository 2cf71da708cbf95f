"""Threads for calls that block."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

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
