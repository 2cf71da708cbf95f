"""A server that ignores the case of names, as on Windows and some managed ones: each spelling is of one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import TargetNotEmptyError
from outfall.mysql.tombstones import MySQLTombstones
from tests.integration.mysql.support import Target
from tests.integration.support.changes import CHANGES
from tests.integration.support.mysql import MySQLServer, own_server
from tests.integration.support.sql import rows, run

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def caseless() -> Iterator[MySQLServer]:
    with own_server(lower_case_table_names="1") as server:
        yield server.client


def _change(operation: str, number: int) -> dict[str, Any]:
    return {"op": operation, "id": 1, "name": "a", "lsn": number}


@pytest.fixture
def target(caseless: MySQLServer) -> Target:
    return Target(caseless, caseless.new_database())


@pytest.mark.parametrize("second", ["T", "{}.t", "{}.T"])
def test_rows_of_another_spelling_are_those_of_the_step(target: Target, tmp_path: Path, second: str) -> None:
    run(target.sink(), tmp_path / "a", 0, rows(1))
    other = second.format(target.database.upper())
    with pytest.raises(TargetNotEmptyError, match="wrote under another checkpoint"):
        run(target.sink(table=other), tmp_path / "b", 0, rows(1))
    run(target.sink(table=other, on_existing="resume"), tmp_path / "c", 0, rows(2))
    with pytest.raises(TargetNotEmptyError):
        run(target.sink(dsn=target.dsn().replace(target.database, target.database.upper())), tmp_path / "d", 0, rows(1))
    run(target.sink(), tmp_path / "a", 1, rows(3))
    assert target.ids() == [1, 2, 3]


@pytest.mark.parametrize("made", [True, False])
def test_a_deleted_row_does_not_come_back_by_another_spelling(target: Target, tmp_path: Path, made: bool) -> None:
    """Also where the sink has created the table."""
    target.run("DROP TABLE t")
    options = CHANGES | {"create_table": "if_missing"}
    if not made:
        target.run("CREATE TABLE T (id BIGINT PRIMARY KEY, name TEXT, lsn BIGINT)")
    names = ("T", "t", f"{target.database.upper()}.T")
    sinks = [target.sink(table=name, on_existing="resume", **options) for name in names]
    for number, (sink, operation, lsn) in enumerate(zip(sinks, "udu", (1, 5, 3), strict=True)):
        sink.check_schema(pa.RecordBatch.from_pylist([_change(operation, lsn)]).schema)
        run(sink, tmp_path / str(number), 0, [_change(operation, lsn)])
    assert target.ids() == []
    assert len(target.tables("tombstones%")) == 1


@pytest.mark.parametrize("both", [False, True])
def test_deletes_of_an_earlier_release_are_kept_whose_table_was_named_by_the_spelling(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    target.run("DROP TABLE t; CREATE TABLE T (id BIGINT PRIMARY KEY, name TEXT, lsn BIGINT)")
    upper, lower = (target.sink(table=name, on_existing="resume", **CHANGES) for name in "Tt")
    init = MySQLTombstones.__init__

    def former(self: Any, dialect: Any, found: Any) -> None:
        init(self, dialect, found)
        self.table = self._of_spelling() or self.table

    with monkeypatch.context() as patched:
        patched.setattr(MySQLTombstones, "__init__", former)
        run(upper, tmp_path / "a", 0, [_change("d", 5)])
    if both:
        run(lower, tmp_path / "b", 0, [_change("d", 4), _change("d", 9) | {"id": 2}])
    assert len(target.tables("tombstones%")) == 1 + both
    run(upper, tmp_path / "a", 1, [_change("u", 3)])
    run(lower, tmp_path / "c", 0, [_change("u", 4), _change("u", 8) | {"id": 2}] if both else [_change("u", 4)])
    assert target.ids() == []
    assert target.tombstones() == [(1, 5), (2, 9)][: 1 + both]
