"""Driver and tasks, or the server, are killed before and after each statement; each row is in the table once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import OutfallError, UnexpectedEpochError
from tests.integration.postgres.support import Target, rows, run
from tests.integration.support.postgres import Server, own_server
from tests.peers.support.postgres_statements import Statements, When, dies_at

DELIVERIES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"write_mode": "upsert", "key_columns": "id"},
    "changes": {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "lsn"},
    "dead letters": {"dead_letter_table": "dead"},
    "source offsets": {"offset_columns": "id"},
    "parts": {"parts": 2, "offset_keys": "ledger"},
}
EPOCHS = 2
SAMPLE = 29
"""In the slice, every so manieth statement of appends."""


class Query:
    """A query of two epochs with two tasks each, in a table of its own."""

    def __init__(self, dsn: str, folder: Path, delivery: str, number: int) -> None:
        self._target = Target(
            dsn, "DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint CHECK (id <> 2) UNIQUE, name text, lsn bigint)"
        )
        self._target.run("DROP SCHEMA IF EXISTS outfall CASCADE; DROP TABLE IF EXISTS dead")
        self._options = DELIVERIES[delivery] | {"retry_deadline": "30 seconds"}
        self._refused = delivery == "dead letters"
        self._recovery = str(folder / str(number))

    def run(self) -> None:
        """Run it to its end by drivers that start anew after an error."""
        sink = self._target.sink(**self._options)
        for epoch in range(EPOCHS):
            tasks: list[list[Any]] = [rows(10 * epoch + 3), rows(10 * epoch + 4, *([2] if self._refused else []))]
            if "parts" in self._options:
                tasks = [[(row["name"], row) for row in task] for task in tasks]
            if "operation_column" in self._options:
                # The delete of a key that is not there, and an older change of it, which must not bring it.
                tasks = [[row | {"op": "c", "lsn": 1} for row in task] for task in tasks]
                tasks[0].append({"id": 99, "name": "late", "op": "du"[epoch], "lsn": 9 - epoch})
            for tries in range(4):
                try:
                    run(sink, self._recovery, epoch, *tasks)
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
        assert self._target.ids() == expected, after
        if self._refused:
            letters = self._target.run("SELECT epoch, \"row\"::jsonb ->> 'id' FROM dead ORDER BY epoch")
            assert letters == [(epoch, "2") for epoch in range(EPOCHS)], after


@pytest.mark.parametrize(
    ("delivery", "step"), [*(pytest.param(name, 1, marks=pytest.mark.long) for name in DELIVERIES), ("append", SAMPLE)]
)
def test_a_driver_that_is_killed_at_any_statement_is_replaced(
    server: Server, tmp_path: Path, delivery: str, step: int
) -> None:
    dsn = server.new_database()
    kills = 0
    for number in itertools.count(1, step):
        query = Query(dsn, tmp_path, delivery, number)
        killed = dies_at(number, "after", query.run)
        query.run()
        query.check(f"killed after statement {number}")
        if not killed:
            break
        kills += 1
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
            for name in DELIVERIES
            for when in ("before", "after", "lost")
        ),
        ("append", 2 * SAMPLE, "lost"),
    ],
)
def test_a_server_that_is_killed_at_any_statement_and_started_again_has_each_row_once(
    mortal: Server, tmp_path: Path, delivery: str, step: int, when: When
) -> None:
    dsn = mortal.new_database()
    kills = 0

    def restart() -> None:
        mortal.kill()
        mortal.start()

    for number in itertools.count(1, step):
        query = Query(dsn, tmp_path, delivery, number)
        statements = Statements(number, when, restart)
        with statements.watching():
            query.run()
        query.check(f"the server killed {when} statement {number}")
        if statements.seen < number:
            break
        kills += 1
    print(f"\n{delivery}: {kills} kills of the server {when} a statement, 0 rows lost, 0 doubled")
    assert kills >= 60 // step
