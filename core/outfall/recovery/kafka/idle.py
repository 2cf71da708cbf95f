"""Logs between two uses: one per process, location and step."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable

from outfall.recovery.kafka.log import KafkaLog


class IdleLogs:
    """Keeps a log that was closed, with its connections and what it has read, for who opens it next.

    Each epoch opens the log anew. To connect, to have the producer registered and to read a topic from its beginning
    would take the better part of a second each time.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._logs: dict[Hashable, KafkaLog] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable) -> KafkaLog | None:
        """Return the log that was kept in this process, if any; it is the caller's then."""
        with self._lock:
            return self._logs.pop((os.getpid(), key), None)

    def keep(self, key: Hashable, log: KafkaLog) -> None:
        """Keep a log; a second one of its kind is shut."""
        with self._lock:
            kept = self._logs.setdefault((os.getpid(), key), log)
        if kept is not log:
            log.shut()


IDLE = IdleLogs()
"""Those of this process."""
