"""`outfall replay` of the letters in a table, on a real server."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.unit.support.command import failed


def place(dsn: str, table: str, **more: str) -> str:
    """The table as a URL, whose parameters say all the rest."""
    given = {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}
    return f"postgresql:///?{urlencode(given | {'table': table} | more)}"


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
