"""Driver and tasks, or the server, are killed before and after each statement; each row is in the table once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.support.sql import Make, MortalServer
from tests.peers.sql.conftest import Peer
from tests.peers.support.each_statement import DELIVERIES, TABLE, Query, When, kill_drivers, kill_servers

SAMPLE = 29
"""In the slice, every so manieth statement of appends."""


def _new_query(make: Make, folder: Path, delivery: str) -> Callable[[int], Query]:
    return lambda number: Query(make(TABLE), str(folder / str(number)), DELIVERIES[delivery])


@pytest.mark.parametrize(
    ("delivery", "step"), [*(pytest.param(name, 1, marks=pytest.mark.long) for name in DELIVERIES), ("append", SAMPLE)]
)
def test_a_driver_that_is_killed_at_any_statement_is_replaced(
    peer: Peer, mortal: tuple[MortalServer, Make], tmp_path: Path, delivery: str, step: int
) -> None:
    _, make = mortal
    kills = kill_drivers(peer.client, _new_query(make, tmp_path, delivery), step)
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
    peer: Peer, mortal: tuple[MortalServer, Make], tmp_path: Path, delivery: str, step: int, when: When
) -> None:
    server, make = mortal

    def restart() -> None:
        server.kill()
        server.start()

    kills = kill_servers(peer.client, _new_query(make, tmp_path, delivery), step, when, restart)
    print(f"\n{delivery}: {kills} kills of the server {when} a statement, 0 rows lost, 0 doubled")
    assert kills >= 60 // step
