"""What is made or altered in a database that other queries use meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from outfall.errors import TransientError
from outfall.postgres import PostgresSink
from tests.integration.postgres.support import Target
from tests.integration.postgres.test_faults import Retries, waits
from tests.integration.support.postgres import Databases
from tests.integration.support.sql import mostly_thorough, rows, run
from tests.integration.support.waiting import until


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """A database of its own: what is tried again is warned of once for each."""
    return postgres.new_database()


def growing(target: Target, **options: Any) -> PostgresSink:
    """A sink whose rows have a column that the table has not."""
    sink = target.sink(schema_evolution="add_columns", **options)
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string(), "more": pa.int64()}))
    return sink


@contextmanager
def read(target: Target) -> Iterator[None]:
    """A report that reads the table in a transaction."""
    with psycopg.connect(target.dsn) as reader:
        reader.execute("SELECT count(*) FROM t")
        yield


def test_a_table_that_waits_to_be_altered_keeps_no_other_query_waiting(target: Target, tmp_path: Path) -> None:
    target.run("CREATE TABLE other (id bigint, name text)")
    run(target.sink(), str(tmp_path / "first"), 0, rows(1))
    done: list[Any] = []

    def grow() -> None:
        sink = growing(target, on_existing="resume")
        done.append(run(sink, str(tmp_path / "a"), 0, [{"id": 2, "name": "n2", "more": 1}]))

    thread = threading.Thread(target=grow)
    with read(target):
        thread.start()
        until(lambda: waits(target), "the table waiting to be altered", 30)
        # It makes a staging table of its own, and begins two epochs.
        other = PostgresSink(target.dsn, "other", statement_timeout="10 seconds")
        for epoch in (0, 1):
            run(other, str(tmp_path / "b"), epoch, rows(epoch))
        assert done == []
    thread.join(60)
    assert len(done) == 1
    assert target.run("SELECT id, more FROM t ORDER BY id") == [(1, None), (2, 1)]
    assert target.run("SELECT count(*) FROM other") == [(2,)]


def test_who_waits_for_a_lock_in_vain_lets_go_and_tries_again(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.connection.database._LONGEST_WAIT", 0.05)
    released = threading.Event()
    retries = Retries(released.set)

    def report() -> None:
        with read(target):
            started.set()
            released.wait(30)

    started = threading.Event()
    reader = threading.Thread(target=report)
    reader.start()
    assert started.wait(30)
    with retries.watching():
        run(growing(target), str(tmp_path / "recovery"), 0, [{"id": 1, "name": "n1", "more": 1}])
    reader.join(30)
    assert "SQLSTATE 55P03" in retries.texts[0]
    assert target.run("SELECT id, more FROM t") == [(1, 1)]


@pytest.mark.thorough
def test_a_lock_that_is_never_let_go_is_told(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.postgres.connection.database._LONGEST_WAIT", 0.05)
    sink = growing(target, retry_deadline="0.5 seconds")
    with read(target), pytest.raises(TransientError, match=r"timed out waiting for a lock.*has locked t.*pg_locks"):
        run(sink, str(tmp_path / "recovery"), 0, [{"id": 1, "name": "n1", "more": 1}])
    assert target.ids() == []


@pytest.mark.parametrize(
    "options",
    mostly_thorough(
        [{}, {"dead_letter_table": "dead"}, {"offset_columns": "id"}],
        [{"dead_letter_table": "dead"}],
    ),
)
def test_drivers_of_several_queries_make_the_same_things_at_once(
    dsn: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    target = Target(dsn, "SELECT 1")
    failed: list[BaseException] = []
    together = threading.Barrier(4, timeout=60)

    def query(number: int) -> None:
        try:
            sink = PostgresSink(dsn, "t", create_table="if_missing", on_existing="resume", **options)
            sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
            together.wait()
            run(sink, str(tmp_path / str(number)), 0, rows(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=query, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert target.ids() == [0, 1, 2, 3]
