"""Logs between two uses: one per process, location and step."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping

from outfall.kafka.log import KafkaLog

Secrets = Mapping[str, str]

MOST = 32
"""Logs that are kept: each has up to four clients, with threads and connections of their own."""


class IdleLogs:
    """Keeps a log that was closed, with its connections and what it has read, for who opens it next.

    Each epoch opens the log anew. To connect, to have the producer registered and to read a topic from its beginning
    would take the better part of a second each time.
    """

    def __init__(self, most: int = MOST) -> None:
        """Keep nothing yet, and never more than so many."""
        self._most = most
        self._logs: dict[tuple[int, Hashable], tuple[Secrets, KafkaLog]] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, secrets: Secrets) -> KafkaLog | None:
        """Return the log that was kept in this process, if any; it is the caller's then.

        Args:
            key: what it is of. Secrets stand in it as they were given, by reference.
            secrets: the client's properties as they are now. A log with others is shut: nobody will ask for it again.
        """
        with self._lock:
            known, log = self._logs.pop((os.getpid(), key), (secrets, None))
        if log is None or known == secrets:
            return log
        log.shut()
        return None

    def keep(self, key: Hashable, secrets: Secrets, log: KafkaLog) -> None:
        """Keep a log. A second one of its kind is shut, and so is the one kept longest when there are too many."""
        me = os.getpid()
        with self._lock:
            _, kept = self._logs.setdefault((me, key), (secrets, log))
            # What a parent process kept has no threads here, and is left alone.
            own = [known for known in self._logs if known[0] == me]
            spent = [self._logs.pop(known)[1] for known in own[: max(0, len(own) - self._most)]]
        if kept is not log:
            spent.append(log)
        for old in spent:
            old.shut()


IDLE = IdleLogs()
"""Those of this process."""
