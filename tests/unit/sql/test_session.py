"""Statements that a connection sends together, in which order and at which time."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.sql.session import BatchingSession, Fetched


class RefusedError(Exception):
    """A statement that the server refuses."""


class Session(BatchingSession):
    """A connection to a server that refuses one statement, and keeps the others."""

    errors = RefusedError

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.open: list[str] = []
        """The savepoints that the server has."""

    def alone(self, statement: Any, given: Any) -> Fetched:
        self.sent.append(statement)
        word, _, name = statement.rpartition(" ")
        if statement == "refused" or (name not in self.open and word in ("ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT")):
            raise RefusedError
        if word == "SAVEPOINT":
            self.open.append(name)
        elif word == "RELEASE SAVEPOINT":
            del self.open[self.open.index(name) :]
        return Fetched(0, [])


def test_a_savepoint_of_a_rejected_row_ends_before_the_next_one_begins() -> None:
    session = Session()
    for _ in range(3):
        with pytest.raises(RefusedError), session.savepoint():
            session.execute("refused")
        session.execute("accepted")
        assert session.open == []


def test_nothing_is_released_where_the_server_has_undone_the_savepoint() -> None:
    session = Session()

    def deadlocked() -> None:
        with session.savepoint():
            session.flush()
            session.open.clear()
            session.execute("refused")

    with pytest.raises(RefusedError):
        deadlocked()
    session.finish("ROLLBACK")
    assert session.sent == ["SAVEPOINT outfall_1", "refused", "ROLLBACK TO SAVEPOINT outfall_1", "ROLLBACK"]
