"""Counts what a process sends to PostgreSQL, and acts before or after the n-th statement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
import pytest

from outfall.postgres.connection.database import PostgresConnection

When = Literal["before", "after", "lost"]
"""Before a statement is sent; after its reply has arrived; or then too, but the reply is lost."""


class Statements:
    """The statements of this process: each wait for the server counts, such as the end of a COPY or a COMMIT."""

    def __init__(self, number: int, when: When, act: Callable[[], object]) -> None:
        self.seen = 0
        self._number = number
        self._when = when
        self._act = act

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all connections of the sinks of this process within the block."""
        wait = PostgresConnection.wait

        def watched(connection: PostgresConnection, waiting: Generator[Any, Any, Any], *args: Any, **more: Any) -> Any:
            self.seen += 1
            chosen = self.seen == self._number
            if chosen and self._when == "before":
                self._act()
            result = wait(connection, waiting, *args, **more)
            if chosen and self._when != "before":
                self._act()
                if self._when == "lost":
                    connection.close()
                    raise psycopg.OperationalError("the reply is lost")
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PostgresConnection, "wait", watched)
            yield


def dies_at(number: int, when: When, work: Callable[[], object]) -> bool:
    """Do the work in a process of its own that is killed (-9) at its n-th statement; return whether it had so many.

    Raises `AssertionError` if the process fails.
    """
    pid = os.fork()
    if pid == 0:
        statements = Statements(number, when, lambda: os.kill(os.getpid(), signal.SIGKILL))
        try:
            with statements.watching():
                work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"statement {number}: the process failed"
    return os.WIFSIGNALED(status)
