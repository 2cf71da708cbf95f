"""As in tests/peers/sql, for the deliveries that only PostgreSQL has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.postgres.connection.database import PostgresConnection
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server, own_server
from tests.peers.support.each_statement import TABLE, Client, Query, When, kill_drivers, kill_servers

pytestmark = pytest.mark.long

CLIENT = Client(PostgresConnection, "wait", lambda: psycopg.OperationalError("the reply is lost"))
DELIVERIES: dict[str, dict[str, Any]] = {"source offsets": {"offset_columns": "id"}}


@pytest.fixture(scope="module")
def mortal(programs: Path) -> Iterator[Server]:
    with own_server(programs=programs) as found:
        yield found


def _new_query(server: Server, folder: Path, delivery: str) -> Callable[[int], Query]:
    return lambda number: Query(Target(server.new_database(), TABLE), str(folder / str(number)), DELIVERIES[delivery])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_driver_that_is_killed_at_any_statement_is_replaced(mortal: Server, tmp_path: Path, delivery: str) -> None:
    assert kill_drivers(CLIENT, _new_query(mortal, tmp_path, delivery), 1) >= 60


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("when", ["before", "after", "lost"])
def test_a_server_that_is_killed_at_any_statement_and_started_again_has_each_row_once(
    mortal: Server, tmp_path: Path, delivery: str, when: When
) -> None:
    def restart() -> None:
        mortal.kill()
        mortal.start()

    assert kill_servers(CLIENT, _new_query(mortal, tmp_path, delivery), 1, when, restart) >= 60
