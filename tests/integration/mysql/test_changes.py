"""Changes applied to a table of MariaDB."""

from __future__ import annotations

from contextlib import closing
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.changes import CHANGES, MOMENTS, ChangedTable, ChangesContract, Make, run
from tests.integration.support.mariadb import MariaDB


class MariaDBTable(Target, ChangedTable):
    backticks = True

    def run(self, statements: str) -> list[tuple[Any, ...]]:
        given = self.server
        with closing(
            pymysql.connect(
                host=given.host, port=given.port, user=given.user, password=given.password, database=self.database,
                autocommit=True,
            )
        ) as connection:  # fmt: skip
            cursor = connection.cursor()
            cursor.execute(statements)
            return list(cursor.fetchall())

    def tombstones_table(self) -> str:
        ((name,),) = self.run("SHOW TABLES LIKE 'tombstones\\_%'")
        return f"`{name}`"

    def age(self, minutes: str) -> None:
        self.run(
            f"UPDATE {self.tombstones_table()} SET _outfall_deleted = UTC_TIMESTAMP(6) - INTERVAL {minutes} MINUTE"
        )

    def is_waiting(self) -> bool:
        return self.server.has_lock_wait()

    def widen(self) -> None:
        self.run("ALTER TABLE t MODIFY id bigint, MODIFY lsn bigint")


class TestChanges(ChangesContract):
    sequences = [
        ("bigint", [9, 10, 11]),
        ("decimal(38, 3)", [Decimal("9.5"), Decimal(10), Decimal("10.001")]),
        ("date", [date(999, 1, 1), date(2020, 1, 1), date(2020, 1, 2)]),
        ("datetime(6)", MOMENTS),
        ("timestamp(6) NULL", MOMENTS),
        ("varchar(20) COLLATE utf8mb4_bin", ["A", "B", "a"]),
        ("varbinary(20)", [b"\x00", b"\x7f", b"\x80"]),
    ]
    no_sequences = [
        ("double", pa.float64(), "double cannot be a sequence, because NaN cannot be ordered"),
        ("double", pa.int32(), "double has no order that is suitable for a sequence"),
        ("varchar(20) COLLATE utf8mb4_general_ci", pa.string(), "may compare different texts as equal"),
        ("char(20) COLLATE utf8mb4_bin", pa.string(), "has no order that is suitable for a sequence"),
        (None, pa.string(), "compares different texts as equal"),
    ]

    @pytest.fixture
    def make(self, server: MariaDB) -> Make:
        return lambda ddl: MariaDBTable(server, server.new_database(), ddl)


@pytest.mark.parametrize("kind", ["varchar(20) COLLATE utf8mb4_general_ci", "timestamp(6)"])
def test_keys_of_tombstones_are_those_of_the_table(server: MariaDB, tmp_path: Any, kind: str) -> None:
    """A collation that ignores case, and a type that servers update by themselves."""
    target = MariaDBTable(
        server, server.new_database(), f"CREATE TABLE t (id {kind} PRIMARY KEY, name text, lsn bigint)"
    )
    written, again = ("a", "A") if kind.startswith("varchar") else (MOMENTS[2], MOMENTS[2])
    for epoch, (operation, key, lsn) in enumerate([("d", written, 8), ("d", again, 9), ("u", again, 8)]):
        row = {"op": operation, "id": key, "name": "late", "lsn": lsn}
        run(target.sink(**CHANGES), str(tmp_path / "recovery"), epoch, [row])
    assert target.run("SELECT * FROM t") == []
    assert [lsn for _, lsn in target.tombstones()] == [9]
