"""Rows and dead letters that are larger than `max_allowed_packet` of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfall.errors import TargetError, ValueRefusedError
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import Server
from tests.integration.support.sql import first, run
from tests.unit.support.command import parsed

LIMIT = 128 << 10
LONG = "ü" * 150_000
TABLE = "CREATE TABLE t (id SMALLINT, name LONGTEXT, data LONGBLOB, CONSTRAINT positive CHECK (id >= 0))"
STORED = f"{TABLE} CHARACTER SET utf8mb4"


@pytest.fixture
def small(mortal: Server) -> Iterator[Target]:
    """A table of a server that takes only small packets."""
    client = mortal.client
    ((before,),) = client.run("SELECT @@GLOBAL.max_allowed_packet")
    client.run(f"SET GLOBAL local_infile = ON, max_allowed_packet = {LIMIT}")
    yield Target(client, client.new_database(), STORED)
    client.run(f"SET GLOBAL local_infile = ON, max_allowed_packet = {before}")


def follow(target: Target, error: BaseException) -> None:
    """Do what an error says."""
    found = re.search(r"set max_allowed_packet of the server to at least (\d+)", str(error))
    assert found is not None
    target.run(f"SET GLOBAL max_allowed_packet = {found[1]}")


def test_rows_that_are_larger_than_a_packet_are_loaded(small: Target, tmp_path: Path) -> None:
    run(
        small.sink(),
        tmp_path,
        0,
        [{"id": 1, "name": LONG, "data": None}, {"id": 2, "name": "", "data": b"x" * 200_000}],
    )
    assert small.rows("id, LENGTH(name), LENGTH(data)") == [(1, 300_000, None), (2, 0, 200_000)]


def test_without_load_the_row_its_column_and_the_variable_are_named_and_raising_it_helps(
    small: Target, tmp_path: Path
) -> None:
    small.run("SET GLOBAL local_infile = OFF")
    # The connection of this epoch is idle when the limit is raised.
    sink = small.sink(dead_letter_table="letters")
    run(sink, tmp_path, 0, [{"id": 1, "name": "short"}])
    with pytest.raises(ValueRefusedError, match=r"row 1 of its task. Its INSERT has 3\d+ bytes.* 'name'") as refused:
        run(small.sink(dead_letter_table="letters"), tmp_path, 1, [{"id": 2, "name": "short"}, {"id": 3, "name": LONG}])
    assert small.ids() == [1]
    run(sink, tmp_path, 1, [{"id": 2, "name": "short"}])
    follow(small, refused.value)
    run(sink, tmp_path, 2, [{"id": 3, "name": LONG}])
    assert small.rows("id, LENGTH(name)") == [(1, 5), (2, 5), (3, 300_000)]


@pytest.mark.parametrize("local_infile", first(1, ["ON", "OFF"]))
def test_a_dead_letter_that_is_larger_than_a_packet_is_kept_whole(
    small: Target, tmp_path: Path, local_infile: str
) -> None:
    """The row has few bytes, and its text has many escapes."""
    small.run(f"SET GLOBAL local_infile = {local_infile}")
    text = LONG if local_infile == "ON" else "\x01" * 100_000
    sink, given = small.sink(dead_letter_table="letters"), [{"id": 70_000, "name": text}, {"id": 1, "name": ""}]
    if local_infile == "OFF":
        with pytest.raises(
            ValueRefusedError, match=r"refused cannot take a dead letter.* 'row', and max_allowed"
        ) as error:
            run(sink, tmp_path / "query", 0, given)
        follow(small, error.value)
    run(sink, tmp_path / "query", 0, given)
    assert small.ids() == [1]
    small.run(f"SET GLOBAL max_allowed_packet = {LIMIT}; ALTER TABLE t MODIFY id INT")
    letters, to = small.dsn(query="tls=prefer&table=letters"), ("--sink", "mysql", "-o", f"dsn={small.dsn()}")
    options = ("-o", "table=t", "-o", f"metadata_schema={small.database}")
    if local_infile == "OFF":
        small.run("SET GLOBAL local_infile = ON")
    assert parsed("replay", letters, "--recovery", tmp_path / "replay", *to, *options)["replayed"] == 1
    assert small.run("SELECT id, LENGTH(name) FROM t WHERE id > 1") == [("70000", str(len(text.encode())))]


@pytest.mark.thorough
def test_a_row_that_publishing_rejects_waits_until_its_letter_fits(small: Target, tmp_path: Path) -> None:
    given = [{"id": -1, "name": LONG}, {"id": 1, "name": ""}]
    with pytest.raises(TargetError, match="raise max_allowed_packet of the server"):
        run(small.sink(dead_letter_table="letters"), tmp_path, 0, given)
    assert small.ids() == []
    small.run("SET GLOBAL max_allowed_packet = 1048576")
    run(small.sink(dead_letter_table="letters"), tmp_path, 0, given)
    assert small.ids() == [1]
    assert small.run("SELECT CHAR_LENGTH(JSON_VALUE(`row`, '$.name')) FROM letters") == [("150000",)]
