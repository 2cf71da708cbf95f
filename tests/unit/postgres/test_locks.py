"""Whether many tables can be locked in one transaction, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from outfall.errors import TargetError
from outfall.postgres.catalogue.locks import check_locks
from outfall.postgres.names import TableName


class _Full:
    """A session whose server has no room for any lock."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.tried = 0

    def execute(self, query: str, given: Any) -> Any:
        return SimpleNamespace(fetchone=lambda: (64, self._room, 10))

    def each(self, statements: Any) -> Any:
        self.tried += 1
        raise psycopg.errors.OutOfMemory("out of shared memory")

    @contextmanager
    def savepoint(self, *, undo: bool) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("room", "error"),
    [
        (40, None),
        # Others have taken the room: the error of the server, after which the transaction is repeated.
        (39, psycopg.errors.OutOfMemory),
        (20, psycopg.errors.OutOfMemory),
        (19, TargetError),
    ],
)
def test_only_settings_that_never_suffice_are_an_error_of_the_tables(room: int, error: type[Exception] | None) -> None:
    session: Any = _Full(room)
    tables = [TableName(None, f"t{number}") for number in range(10)]
    if error is None:
        check_locks(session, tables, [])
        assert not session.tried
        return
    with pytest.raises(error):
        check_locks(session, tables, [])
