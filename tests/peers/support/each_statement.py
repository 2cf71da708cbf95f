"""Two epochs in a database whose driver, or whose server, is killed at each statement, one after the other.

What a process sends is counted at the method of the client that sends a statement, or waits for its reply.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from outfall.errors import OutfallError, UnexpectedEpochError
from outfall.testing import LocalDriver
from tests.integration.support.sql import Table

When = Literal["before", "after", "lost"]
"""Before a statement is sent; after its reply has arrived; or then too, but the reply is lost."""

DELIVERIES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"write_mode": "upsert", "key_columns": "id"},
    "changes": {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "lsn"},
    "dead letters": {"dead_letter_table": "dead"},
    "parts": {"parts": 2, "offset_keys": "ledger"},
}
"""Of both databases."""
EPOCHS = 2
TABLE = "CREATE TABLE t (id bigint CHECK (id <> 2), name varchar(9), lsn bigint, UNIQUE (id))"


@dataclass(frozen=True)
class Client:
    """A method through which all statements of a database's client go, and the error of a lost reply."""

    owner: type
    method: str
    lost: Callable[[], Exception]


class Statements:
    """The statements of this process."""

    def __init__(self, client: Client, number: int, when: When, act: Callable[[], object]) -> None:
        self.seen = 0
        self._client = client
        self._number = number
        self._when = when
        self._act = act

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all connections of the sinks of this process within the block."""
        sent = getattr(self._client.owner, self._client.method)

        def watched(connection: Any, *args: Any, **more: Any) -> Any:
            self.seen += 1
            chosen = self.seen == self._number
            if chosen and self._when == "before":
                self._act()
            result = sent(connection, *args, **more)
            if chosen and self._when != "before":
                self._act()
                if self._when == "lost":
                    connection.close()
                    raise self._client.lost()
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._client.owner, self._client.method, watched)
            yield


class Query:
    """A query of two epochs with two tasks each."""

    def __init__(self, place: Table, recovery: str, options: dict[str, Any]) -> None:
        self._place = place
        self._options = options | {"retry_deadline": "30 seconds"}
        self._refused = "dead_letter_table" in options
        self._recovery = recovery

    def run(self) -> None:
        """Run it to its end by drivers that start anew after an error."""
        sink = self._place.sink(**self._options)
        for epoch in range(EPOCHS):
            for tries in range(4):
                try:
                    LocalDriver(sink, self._recovery).run_epoch(epoch, self._tasks(epoch))
                except UnexpectedEpochError:
                    assert epoch < EPOCHS - 1
                    break  # a driver that died has begun the next one
                except OutfallError:
                    if tries == 3:
                        raise
                else:
                    break

    def check(self, after: str) -> None:
        """Count the rows as another program sees them."""
        expected = [10 * epoch + row for epoch in range(EPOCHS) for row in (3, 4)]
        assert self._place.ids() == expected, after
        if self._refused:
            letters = sorted((epoch, row["id"]) for row, epoch in self._place.letters("epoch"))
            assert letters == [(epoch, 2) for epoch in range(EPOCHS)], after

    def _tasks(self, epoch: int) -> list[Sequence[Any]]:
        given = [[10 * epoch + 3], [10 * epoch + 4, *([2] if self._refused else [])]]
        tasks: list[list[Any]] = [[{"id": number, "name": f"n{number}"} for number in task] for task in given]
        if "parts" in self._options:
            return [[(row["name"], row) for row in task] for task in tasks]
        if "operation_column" in self._options:
            # The delete of a key that is not there, and an older change of it, which must not bring it.
            tasks = [[row | {"op": "c", "lsn": 1} for row in task] for task in tasks]
            tasks[0].append({"id": 99, "name": "late", "op": "du"[epoch], "lsn": 9 - epoch})
        return [*tasks]


def kill_drivers(client: Client, new_query: Callable[[int], Query], step: int) -> int:
    """Kill driver and tasks (-9) after every `step`-th statement of a query of its own; return the number of kills."""
    for kills, number in enumerate(itertools.count(1, step)):
        query = new_query(number)
        killed = _dies_at(client, number, query.run)
        query.run()
        query.check(f"killed after statement {number}")
        if not killed:
            return kills
    raise AssertionError


def kill_servers(
    client: Client, new_query: Callable[[int], Query], step: int, when: When, restart: Callable[[], None]
) -> int:
    """Kill the server at every `step`-th statement, and start it again; return the number of kills."""
    for kills, number in enumerate(itertools.count(1, step)):
        query = new_query(number)
        statements = Statements(client, number, when, restart)
        with statements.watching():
            query.run()
        query.check(f"the server killed {when} statement {number}")
        if statements.seen < number:
            return kills
    raise AssertionError


def _dies_at(client: Client, number: int, work: Callable[[], object]) -> bool:
    """Do the work in a process of its own that is killed (-9) after its n-th statement; return whether it had so many.

    Raises `AssertionError` if the process fails.
    """
    pid = os.fork()
    if pid == 0:
        statements = Statements(client, number, "after", lambda: os.kill(os.getpid(), signal.SIGKILL))
        try:
            with statements.watching():
                work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"statement {number}: the process failed"
    return os.WIFSIGNALED(status)
