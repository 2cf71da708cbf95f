"""`outfall replay` of the letters in a table, on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outfall.testing.crash_points import crash_at
from tests.integration.support.sql import KEYED, ON_EACH, UPSERT, Make, mostly_thorough, run
from tests.unit.support.command import done, failed, parsed

pytestmark = ON_EACH


@pytest.mark.parametrize("found_by", mostly_thorough(["staging", "publishing"], ["publishing"]))
def test_letters_go_back_into_the_table_once_with_all_their_values(make: Make, tmp_path: Path, found_by: str) -> None:
    """One is refused again: it is a letter again, and waits for the next run."""
    types = make("CREATE TABLE t (id int)").replayed
    columns = ", ".join(f"c{place} {kind}" for place, (kind, _, _) in enumerate(types))
    checked = "CONSTRAINT positive CHECK (id >= 0)"
    target = make(f"CREATE TABLE t (id smallint, {columns}, noted varchar(9) DEFAULT 'made', {checked})")

    def row(number: int) -> dict[str, Any]:
        return {"id": number} | {f"c{place}": sent for place, (_, sent, _) in enumerate(types)}

    refused = [70_000, 70_001, 70_002] if found_by == "staging" else [-3, -2, -1]
    run(target.sink(dead_letter_table="letters"), tmp_path / "query", 0, [row(1)], [row(number) for number in refused])
    options = target.options() | {"dead_letter_table": "letters"}
    command: tuple[object, ...] = ("replay", target.letters_at("letters"), "--recovery", tmp_path / "replay")
    command += ("--sink", target.connector, *(f"-o{name}={value}" for name, value in options.items()))

    if found_by == "staging":
        assert "cannot store 70000 as smallint" in failed(*command)
    else:
        assert parsed(*command, "--dry-run")["would_replay"] == 3
    target.run("ALTER TABLE t DROP CONSTRAINT positive")
    target.retype(id="bigint")
    target.run("ALTER TABLE t ADD CONSTRAINT partly CHECK (id NOT IN (70000, -3))")
    with crash_at("after PREPARED#2", required=True):
        done(*command)
    told = json.loads(failed(*command, "--json"))
    assert (told["found"], told["refused"]) == (3, 1)
    values = (*(stored for _, _, stored in types), "made")
    assert target.rows() == [(number, *values) for number in sorted([1, *refused[1:]])]
    assert [code for _, step, code in target.letters("step, code", "letters") if step == "replay"] == [
        target.codes["check"]
    ]
    assert "1 of them rejected again\nThe rejected rows are new dead letters of step replay" in failed(*command)
    target.run("ALTER TABLE t DROP CONSTRAINT partly")
    told = parsed(*command)
    assert (told["found"], told["before"], told["replayed"], told["refused"]) == (5, 4, 1, 0)
    assert parsed(*command)["replayed"] == 0
    assert target.ids() == sorted([1, *refused])


def test_an_older_letter_never_replaces_what_was_written_since(make: Make, tmp_path: Path) -> None:
    target = make(KEYED)
    keyed = UPSERT | {"dead_letter_table": "letters"}
    older = {"id": 1, "name": "refused", "version": 1}
    target.run("ALTER TABLE t ADD CONSTRAINT newer CHECK (version > 1)")
    run(target.sink(**keyed), tmp_path / "query", 0, [older], [{"id": 2, "name": "b", "version": 2}])
    run(target.sink(**keyed), tmp_path / "query", 1, [{"id": 1, "name": "newer", "version": 2}])
    target.run("ALTER TABLE t DROP CONSTRAINT newer")
    options = target.options() | {"dead_letter_table": "letters", "write_mode": "upsert", "key_columns": "id"}
    to = ("--sink", target.connector, *(f"-o{name}={value}" for name, value in options.items()))
    letters = ("replay", target.letters_at("letters"))
    assert "may replace or delete newer ones" in failed(*letters, *to, "--recovery", tmp_path / "plain")
    ordered = (*letters, *to, "-oorder_column=version", "--recovery", tmp_path / "ordered")
    assert parsed(*ordered)["replayed"] == 1
    assert target.rows() == [(1, "newer", 2), (2, "b", 2)]
    permitted = (*letters, *to, "--replace-newer", "--step", "permitted", "--recovery", tmp_path / "plain")
    assert parsed(*permitted)["replayed"] == 1
    assert target.rows() == [(1, "refused", 1), (2, "b", 2)]
