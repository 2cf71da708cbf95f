"""`outfall replay` of the letters in a table, on a real server."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from outfall.testing.crash_points import crash_at
from tests.integration.mysql.support import Target, run
from tests.integration.support.mariadb import MariaDB
from tests.unit.support.command import done, failed, parsed

COLUMNS = (
    "id smallint, account bigint unsigned, price decimal(30,20), at datetime(6), data blob, ratio float, flag tinyint,"
    " more json, noted date DEFAULT '2026-11-23'"
)
SHOWN = "id, account, price, at, HEX(data), ratio + 0e0, flag, JSON_VALUE(more, '$.a'), noted"
VALUES = ("3000000000", "0.10000000000000000001", "2026-11-23 01:02:03.456789", "00FF", "1.2345677614212036", "1")


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "account": 3_000_000_000,
        "price": Decimal("0.10000000000000000001"),
        "at": datetime(2026, 11, 23, 1, 2, 3, 456789, UTC),
        "data": b"\x00\xff",
        "ratio": 1.2345677614212036,
        "flag": True,
        "more": '{"a": "ü"}',
    }


@pytest.mark.parametrize("found_by", ["staging", "publishing"])
def test_letters_go_back_into_the_table_once_with_all_their_values(
    server: MariaDB, database: str, tmp_path: Path, found_by: str
) -> None:
    target = Target(server, database, f"CREATE TABLE t ({COLUMNS}, CONSTRAINT positive CHECK (id >= 0))")
    refused = [70_000, 70_001, 70_002] if found_by == "staging" else [-3, -2, -1]
    run(target.sink(dead_letter_table="letters"), tmp_path / "query", 0, [row(1)], [row(number) for number in refused])
    place, to = target.dsn(query="tls=prefer&table=letters"), ("--sink", "mysql", "-o", f"dsn={target.dsn()}")
    options = ("table=t", "dead_letter_table=letters", f"metadata_schema={database}")
    command = ("replay", place, "--recovery", tmp_path / "replay", *to, *(f"-o{option}" for option in options))

    if found_by == "staging":
        assert "cannot store 70000 as smallint" in failed(*command)
    else:
        assert parsed(*command, "--dry-run")["would_replay"] == 3
    target.run(
        "ALTER TABLE t MODIFY id bigint, DROP CONSTRAINT positive, ADD CONSTRAINT some CHECK (id NOT IN (70000, -3))"
    )
    with crash_at("after PREPARED#2", required=True):
        done(*command)
    result = json.loads(failed(*command, "--json"))
    assert (result["found"], result["refused"]) == (3, 1)
    # One is refused again; it is a letter again, and waits for the next run.
    found = {int(number): rest for number, *rest in target.run(f"SELECT {SHOWN} FROM t")}
    assert found == {number: [*VALUES, "ü", "2026-11-23"] for number in [1, *refused[1:]]}
    # The number of a CHECK in MariaDB, or in MySQL.
    assert target.run("SELECT code FROM letters WHERE step = 'replay'") in ([("4025",)], [("3819",)])
    target.run("ALTER TABLE t DROP CONSTRAINT some")
    result = parsed(*command)
    assert (result["found"], result["before"], result["replayed"], result["refused"]) == (4, 3, 1, 0)
    assert parsed(*command)["replayed"] == 0
    assert target.ids() == sorted([1, *refused])


def test_a_password_is_taken_from_a_file_and_not_shown(target: Target, tmp_path: Path) -> None:
    user = f"u{target.database[-16:]}"
    target.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'geheim'; GRANT SELECT ON {target.database}.* TO {user}@'%'")
    (tmp_path / "password").write_text("geheim")
    letters = target.dsn(user=user, query=f"tls=prefer&password=file:{tmp_path / 'password'}&table=letters")
    arguments = ("--sink", "file", "-o", f"path={tmp_path / 'out'}", "--schema", "json", "--recovery", tmp_path / "r")
    text = failed("replay", letters, *arguments)
    assert "the table letters in" in text
    assert "has no dead letters" in text
    assert "geheim" not in text
    (tmp_path / "password").write_text("falsch")
    text = failed("replay", letters, *arguments)
    assert "Access denied" in text
    assert "falsch" not in text
    assert not os.path.exists(tmp_path / "out")
