"""Changes applied to a table of MariaDB."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.changes import CHANGES, MOMENTS
from tests.integration.support.mysql import MySQLServer
from tests.integration.support.sql import first, run


@pytest.mark.parametrize("kind", first(1, ["varchar(20) COLLATE utf8mb4_general_ci", "timestamp(6)"]))
def test_keys_of_tombstones_are_those_of_the_table(server: MySQLServer, tmp_path: Any, kind: str) -> None:
    """A collation that ignores case, and a type that servers update by themselves."""
    target = Target(server, server.new_database(), f"CREATE TABLE t (id {kind} PRIMARY KEY, name text, lsn bigint)")
    written, again = ("a", "A") if kind.startswith("varchar") else (MOMENTS[2], MOMENTS[2])
    for epoch, (operation, key, lsn) in enumerate([("d", written, 8), ("d", again, 9), ("u", again, 8)]):
        row = {"op": operation, "id": key, "name": "late", "lsn": lsn}
        run(target.sink(**CHANGES), str(tmp_path / "recovery"), epoch, [row])
    assert target.run("SELECT * FROM t") == []
    assert [lsn for _, lsn in target.tombstones()] == [9]
