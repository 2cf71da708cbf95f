"""`outfall replay` of the letters in a table, on a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.command import done, failed, parsed

COLUMNS = (
    "id smallint, account bigint, price numeric(30,20), at timestamptz, data bytea, more jsonb, tags text[],"
    " noted date DEFAULT '2026-11-23'"
)


def place(dsn: str, table: str, **more: str) -> str:
    """The table as a URL, whose parameters say all the rest."""
    given = {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}
    return f"postgresql:///?{urlencode(given | {'table': table} | more)}"


def row(number: int, **more: Any) -> dict[str, Any]:
    given = {
        "id": number,
        "account": "172",
        "price": "0.10000000000000000001",
        "at": "2026-11-23T01:02:03.456789Z",
        "data": b"\x00\xff",
    }
    return given | {"more": '{"a": [1.10, null]}', "tags": ["x", None]} | more


@pytest.mark.parametrize("found_by", ["staging", "publishing"])
def test_letters_go_back_into_the_table_once_with_all_their_values(dsn: str, tmp_path: Path, found_by: str) -> None:
    refused = [70_000, 70_001, 70_002] if found_by == "staging" else [-3, -2, -1]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t ({COLUMNS}, CONSTRAINT positive CHECK (id >= 0))")
        sink = PostgresSink(dsn, "t", dead_letter_table="refused")
        LocalDriver(sink, str(tmp_path / "query")).run_epoch(0, [[row(1)], [row(number) for number in refused]])
        command: tuple[object, ...] = (
            "replay",
            place(dsn, "refused"),
            "--recovery",
            tmp_path / "replay",
            "--sink",
            "postgres",
        )
        command += ("-o", f"dsn={dsn}", "-o", "table=t", "-o", "dead_letter_table=refused")

        if found_by == "staging":
            assert "cannot store 70000 as smallint" in failed(*command)
        else:
            assert parsed(*command, "--dry-run")["would_replay"] == 3
        connection.execute(
            "ALTER TABLE t ALTER id TYPE bigint, DROP CONSTRAINT positive, ADD CHECK (id NOT IN (70000, -3))"
        )
        with crash_at("after PREPARED#2", required=True):
            done(*command)
        # Text of a bigint is taken as from the stream, and a row that is refused again is an error.
        result = json.loads(failed(*command, "--json"))
        assert (result["found"], result["refused"]) == (3, 1)
        # One is refused again; it is a letter again, and waits for the next run.
        found = connection.execute(
            "SELECT id, account, price::text, at, data, more::text, tags, noted::text FROM t ORDER BY id"
        )
        values = (172, "0.10000000000000000001", b"\x00\xff", '{"a": [1.10, null]}', ["x", None], "2026-11-23")
        rows = {number: (*rest[:2], *rest[3:]) for number, *rest in found.fetchall()}
        assert rows == dict.fromkeys([1, *refused[1:]], values)
        again = connection.execute("SELECT step, code FROM refused WHERE step = 'replay'").fetchall()
        assert again == [("replay", "23514")]
        assert "1 of them rejected again\nThe rejected rows are new dead letters of step replay" in failed(*command)
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_id_check")
        result = parsed(*command)
        assert (result["found"], result["before"], result["replayed"], result["refused"]) == (5, 4, 1, 0)
        assert parsed(*command)["replayed"] == 0
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (4,)


def test_a_password_is_taken_from_a_file_and_not_shown(dsn: str, role: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {role} PASSWORD 'geheim'")
    (tmp_path / "password").write_text("geheim")
    letters = place(dsn, "refused", user=role, password=f"file:{tmp_path / 'password'}")
    arguments = ("--sink", "file", "-o", f"path={tmp_path / 'out'}", "--schema", "json", "--recovery", tmp_path / "r")
    text = failed("replay", letters, *arguments)
    assert "the table refused in" in text
    assert "geheim" not in text
    assert not os.path.exists(tmp_path / "out")
