"""Driver and tasks, or the server, are killed before and after each statement; each row is in the table once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.postgres.connection.database import PostgresConnection
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server, own_server
from tests.peers.support.each_statement import DELIVERIES, TABLE, Client, Query, When, kill_drivers, kill_servers

CLIENT = Client(PostgresConnection, "wait", lambda: psycopg.OperationalError("the reply is lost"))
"""Each wait for the server counts, such as the end of a COPY or a COMMIT."""
ALL: dict[str, dict[str, Any]] = DELIVERIES | {
    "source offsets": {"offset_columns": "id"},
    "parts": {"parts": 2, "offset_keys": "ledger"},
}
SAMPLE = 29
"""In the slice, every so manieth statement of appends."""


class Place(Target):
    """The table, which each query finds empty."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, f"DROP TABLE IF EXISTS t, dead; {TABLE}")
        self.run("DROP SCHEMA IF EXISTS outfall CASCADE")

    def letters(self) -> list[tuple[int, str]]:
        return [(epoch, id_) for epoch, id_ in self.run("SELECT epoch, \"row\"::jsonb ->> 'id' FROM dead ORDER BY 1")]


def _new_query(server: Server, folder: Path, delivery: str) -> Callable[[int], Query]:
    dsn = server.new_database()
    return lambda number: Query(Place(dsn), str(folder / str(number)), ALL[delivery])


@pytest.mark.parametrize(
    ("delivery", "step"), [*(pytest.param(name, 1, marks=pytest.mark.long) for name in ALL), ("append", SAMPLE)]
)
def test_a_driver_that_is_killed_at_any_statement_is_replaced(
    server: Server, tmp_path: Path, delivery: str, step: int
) -> None:
    kills = kill_drivers(CLIENT, _new_query(server, tmp_path, delivery), step)
    print(f"\n{delivery}: {kills} kills of the driver, 0 rows lost, 0 doubled")
    assert kills >= 60 // step


@pytest.fixture(scope="module")
def mortal(programs: Path) -> Iterator[Server]:
    with own_server(programs=programs) as found:
        yield found


@pytest.mark.parametrize(
    ("delivery", "step", "when"),
    [
        *(
            pytest.param(name, 1, when, marks=pytest.mark.long)
            for name in ALL
            for when in ("before", "after", "lost")
        ),
        ("append", 2 * SAMPLE, "lost"),
    ],
)  # fmt: skip
def test_a_server_that_is_killed_at_any_statement_and_started_again_has_each_row_once(
    mortal: Server, tmp_path: Path, delivery: str, step: int, when: When
) -> None:
    def restart() -> None:
        mortal.kill()
        mortal.start()

    kills = kill_servers(CLIENT, _new_query(mortal, tmp_path, delivery), step, when, restart)
    print(f"\n{delivery}: {kills} kills of the server {when} a statement, 0 rows lost, 0 doubled")
    assert kills >= 60 // step
