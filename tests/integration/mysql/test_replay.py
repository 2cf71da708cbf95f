"""`outfall replay` of the letters in a table, on a real server."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.mysql.support import Target
from tests.unit.support.command import failed


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
