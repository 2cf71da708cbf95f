"""Tables that join a fan-out later: nothing in them is missing, whatever was completed before they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.errors import TargetLostError
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver, crash_at
from outfall.wrappers import FanOutSink
from tests.one_each import thorough


@pytest.mark.parametrize("options", [{}, thorough({"offset_keys": "ledger", "parts": 1})], ids=["epoch", "parts"])
def test_a_table_is_added_and_the_driver_dies_at_once(dsn: str, tmp_path: Path, options: dict[str, Any]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in "ab":
            connection.execute(f"CREATE TABLE {name} (id bigint)")

    def write(names: str, epoch: int) -> None:
        sink = FanOutSink(**{name: PostgresSink(dsn, name, **options) for name in names})
        row: Any = {"id": epoch}
        LocalDriver(sink, str(tmp_path)).run_epoch(epoch, [[("0", row) if options else row]])

    def ids(name: str) -> list[int]:
        with psycopg.connect(dsn) as connection:
            return [row[0] for row in connection.execute(f"SELECT id FROM {name} ORDER BY id")]

    write("a", 0)
    for point in ("after BEGIN", "after open target", "after COMMITTING"):
        with crash_at(point):
            write("ab", 1)
    write("ab", 1)
    write("ab", 2)
    assert (ids("a"), ids("b")) == ([0, 1, 2], [1, 2])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE b")
    with pytest.raises(TargetLostError):
        write("ab", 3)
