"""Connections of a process: which is kept for the next transaction, and which is closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from outfall.idle import Idle
from outfall.sql.database import lent


class Connection:
    def __init__(self) -> None:
        self.busy = False
        self.usable = True
        self.closed = False

    def is_busy(self) -> bool:
        return self.busy

    def shut(self) -> None:
        self.closed = True


def fail(connection: Connection) -> None:
    raise KeyboardInterrupt


def stay_busy(connection: Connection) -> None:
    connection.busy = True


def grow_old(connection: Connection) -> None:
    connection.usable = False


@pytest.mark.parametrize(
    ("use", "kept"),
    [(lambda _: None, True), (fail, False), (stay_busy, False), (grow_old, False)],
    ids=["used", "failed", "busy", "not usable"],
)
def test_a_connection_is_lent_again_unless_it_failed_is_busy_or_is_not_usable(
    use: Callable[[Connection], None], kept: bool
) -> None:
    idle: Idle[Connection] = Idle(2)

    def lend(use: Callable[[Connection], None], key: str = "one server") -> Connection:
        with lent(idle, key, lambda connection: connection.usable, Connection) as connection:
            use(connection)
        return connection

    first: list[Connection] = []

    def remember(connection: Connection) -> None:
        first.append(connection)
        use(connection)

    with suppress(KeyboardInterrupt):
        lend(remember)
    second = lend(lambda _: None)
    assert (second is first[0], first[0].closed) == (kept, not kept)
    assert lend(lambda _: None, "another server") is not second
