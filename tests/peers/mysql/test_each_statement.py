"""Driver and tasks, or MySQL, are killed before and after each statement; each row is in the table once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from outfall.mysql.connection import LoadConnection
from tests.integration.mysql.support import Target
from tests.integration.support.mariadb import MariaDB, Server, own_server
from tests.peers.support.debian import mysql_programs
from tests.peers.support.each_statement import DELIVERIES, TABLE, Client, Query, When, kill_drivers, kill_servers

CLIENT = Client(LoadConnection, "query", lambda: pymysql.OperationalError(2013, "the reply is lost"))
SAMPLE = 29
"""In the slice, every so manieth statement of appends."""


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    with mysql_programs() as programs, own_server(programs) as found:
        yield found


class Place(Target):
    """The table, in a database of its own."""

    def __init__(self, server: MariaDB) -> None:
        super().__init__(server, server.new_database(), TABLE)

    def letters(self) -> list[tuple[int, str]]:
        found = self.run("SELECT epoch, JSON_VALUE(`row`, '$.id') FROM dead ORDER BY 1")
        return [(int(epoch), id_) for epoch, id_ in found]


def _new_query(server: Server, folder: Path, delivery: str) -> Callable[[int], Query]:
    return lambda number: Query(Place(server.client), str(folder / str(number)), DELIVERIES[delivery])


@pytest.mark.parametrize(
    ("delivery", "step"), [*(pytest.param(name, 1, marks=pytest.mark.long) for name in DELIVERIES), ("append", SAMPLE)]
)
def test_a_driver_that_is_killed_at_any_statement_is_replaced(
    mortal: Server, tmp_path: Path, delivery: str, step: int
) -> None:
    kills = kill_drivers(CLIENT, _new_query(mortal, tmp_path, delivery), step)
    print(f"\n{delivery}: {kills} kills of the driver, 0 rows lost, 0 doubled")
    assert kills >= 60 // step


@pytest.mark.parametrize(
    ("delivery", "step", "when"),
    [
        *(
            pytest.param(name, 1, when, marks=pytest.mark.long)
            for name in DELIVERIES
            for when in ("before", "after", "lost")
        ),
        ("append", 2 * SAMPLE, "lost"),
    ],
)
def test_a_server_that_is_killed_at_any_statement_and_started_again_has_each_row_once(
    mortal: Server, tmp_path: Path, delivery: str, step: int, when: When
) -> None:
    def restart() -> None:
        mortal.server.kill()
        mortal.server.start()

    kills = kill_servers(CLIENT, _new_query(mortal, tmp_path, delivery), step, when, restart)
    print(f"\n{delivery}: {kills} kills of the server {when} a statement, 0 rows lost, 0 doubled")
    assert kills >= 60 // step
