"""Dumps that are restored over a table that a query writes to: an older one is noticed, the newest one continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.errors import OutfallError, TargetLostError
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server
from tests.integration.support.servers import open_folder
from tests.integration.support.sql import listening, rows, run

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"
DELIVERIES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"write_mode": "upsert", "key_columns": "id"},
    "source offsets": {"offset_columns": "id"},
    "parts": {"parts": 2, "offset_keys": "ledger"},
}
EACH = pytest.mark.parametrize(
    "delivery", [pytest.param(name, marks=[] if name == "append" else pytest.mark.long) for name in DELIVERIES]
)
CLEAN = ("--clean", "--if-exists")
OLDER: dict[str, tuple[tuple[str, ...], str]] = {
    "all": (CLEAN, "SELECT 1"),
    "the ledger": ((*CLEAN, "--schema=outfall"), "DROP SCHEMA outfall CASCADE"),
    "data only": (("--data-only",), "TRUNCATE t; TRUNCATE outfall.ledger CASCADE; TRUNCATE outfall.attempts"),
}
"""What is dumped after epoch 0, and what its restorer does before."""


class Dump:
    """A dump of a database, and its restoration."""

    def __init__(self, server: Server, target: Target, *options: str) -> None:
        self._server = server
        self._target = target
        self._text = server.run_program("pg_dump", "-d", target.dsn, *options)

    def restore(self, before: str = "SELECT 1") -> None:
        self._target.run(before)
        with open_folder() as folder:
            Path(folder, "dump").write_text(self._text)
            self._server.run_program("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", folder / "dump", self._target.dsn)


def write(sink: Any, recovery: str, epoch: int) -> None:
    made = rows(epoch)
    run(sink, recovery, epoch, [("k", row) for row in made] if sink.options.parts else made)


@pytest.mark.parametrize("older", OLDER)
@EACH
def test_an_older_dump_is_noticed_before_the_next_epoch(
    server: Server, recovery: str, delivery: str, older: str
) -> None:
    target = Target(server.new_database(), TABLE)
    sink = target.sink(**DELIVERIES[delivery])
    write(sink, recovery, 0)
    options, before = OLDER[older]
    dump = Dump(server, target, *options)
    write(sink, recovery, 1)
    dump.restore(before)
    found = target.ids()
    for _ in range(2):
        with pytest.raises(TargetLostError, match=r"t is behind the recovery data"):
            write(sink, recovery, 2)
    assert target.ids() == found


@EACH
def test_an_older_dump_that_is_restored_in_an_epoch_is_noticed_before_its_rows_are_published(
    server: Server, recovery: str, delivery: str
) -> None:
    target = Target(server.new_database(), TABLE)
    sink = target.sink(**DELIVERIES[delivery])
    write(sink, recovery, 0)
    dump = Dump(server, target, *CLEAN)
    write(sink, recovery, 1)

    def restore(step: str) -> None:
        if step == "after open target":
            dump.restore()

    with listening(restore), pytest.raises(OutfallError):
        write(sink, recovery, 2)
    with pytest.raises(TargetLostError):
        write(sink, recovery, 2)
    # By the source's offsets a task publishes its rows, which are among those that are there once in the end.
    assert target.ids() in ([[0], [0, 2]] if delivery == "source offsets" else [[0]])


@EACH
def test_the_newest_dump_is_continued(server: Server, recovery: str, delivery: str) -> None:
    target = Target(server.new_database(), TABLE)
    sink = target.sink(**DELIVERIES[delivery])
    for epoch in range(2):
        write(sink, recovery, epoch)
    Dump(server, target, *CLEAN).restore()
    write(sink, recovery, 2)
    assert target.ids() == [0, 1, 2]
