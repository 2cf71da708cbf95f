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


def test_names_of_columns_that_an_update_keeps_are_told_apart_whatever_collation_the_server_has(
    server: MySQLServer, tmp_path: Any
) -> None:
    """The default of MySQL and of newer releases of MariaDB ignores control characters."""
    target = Target(
        server, server.new_database(), "CREATE TABLE t (id int PRIMARY KEY, lsn int, a text, b text, ab text)"
    )
    sink, place, gone = target.sink(**CHANGES), str(tmp_path / "recovery"), "__debezium_unavailable_value"
    old = {"a": "old", "b": "old", "ab": "old"}
    run(sink, place, 0, [{"op": "c", "id": number, "lsn": 1, **old} for number in (1, 2)])
    query = "SELECT collation_name FROM information_schema.columns WHERE column_name = '_outfall_operation'"
    assert target.run(f"{query} AND table_schema = DATABASE()") == [("utf8mb4_bin",)]
    changes = [{"a": gone, "b": gone, "ab": "new"}, {"a": "new", "b": "new", "ab": gone}]
    run(sink, place, 1, [{"op": "u", "id": number, "lsn": 2, **row} for number, row in enumerate(changes, 1)])
    assert target.rows("a, b, ab") == [("new", "new", "old"), ("old", "old", "new")]
