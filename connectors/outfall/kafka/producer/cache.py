"""The producers of a process: those in use, and those cached for the next epoch."""

from __future__ import annotations

import threading
import time
from typing import TypeVar, cast

from outfall.idle import Idle
from outfall.kafka.producer.base import STATISTICS, KafkaProducer

P = TypeVar("P", bound=KafkaProducer)

LEAST = 8
"""Minimum size of the cache of idle producers. Each has its own threads and connections."""


class Producers:
    """The producers of a process.

    The cache holds as many as were in use at one time, so that each part of a task finds its own again.
    """

    def __init__(self, least: int = LEAST) -> None:
        """Start empty."""
        self._idle: Idle[KafkaProducer] = Idle(least)
        self._in_use = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self, wanted: P) -> P:
        """Return a cached producer with the arguments of `wanted`, else `wanted` itself, opened.

        The caller returns it with `keep` or `drop`.
        """
        return self.kept(wanted) or self.open(wanted)

    def kept(self, wanted: P) -> P | None:
        """Return a cached producer that may be used again, if there is one, like `take`."""
        kept = self._idle.take(wanted.key, wanted.options.resolved(), lambda found: found.reusable())
        if kept is None:
            return None
        self._use(1)
        return cast(P, kept)  # the key contains the class

    def open(self, wanted: P) -> P:
        """Return `wanted` itself, opened, otherwise like `take`."""
        wanted.open()
        self._use(1)
        return wanted

    def keep(self, producer: KafkaProducer) -> None:
        """Cache a producer that has flushed or committed. A broken one is dropped."""
        if producer.broken:
            self.drop(producer)
            return
        self._use(-1)
        producer.rest()
        self._idle.keep(producer.key, producer.secrets, producer)
        self._tend()

    def drop(self, producer: KafkaProducer) -> None:
        """Close a producer that must not be used again, with its unsent records."""
        self._use(-1)
        producer.shut()

    def close(self) -> None:
        """Close all cached producers."""
        for producer in self._idle.clear():
            producer.shut()

    def _use(self, more: int) -> None:
        with self._lock:
            self._in_use += more
            self._idle.most = max(self._idle.most, self._in_use)

    def _tend(self) -> None:
        """Serve the events of cached producers in a thread, because their statistics would accumulate."""
        with self._lock:
            # In a child process, the thread of the parent does not run.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._listen, name="outfall-idle-producers", daemon=True)
                self._thread.start()

    def _listen(self) -> None:
        while True:
            with self._lock:
                kept = self._idle.all()
                if not kept:
                    self._thread = None
                    return
            for producer in kept:
                producer.poll()
            del kept, producer
            time.sleep(STATISTICS)


PRODUCERS = Producers()
"""The producers of this process."""
