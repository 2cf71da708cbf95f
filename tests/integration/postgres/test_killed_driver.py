"""The driver is killed (-9) while it streams real flights into a table, and started again until the stream ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.integration.postgres.support import Target
from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import FORMAT_API, KILLS, make_job
from tests.integration.support.postgres import location

pytestmark = [pytest.mark.spark, pytest.mark.faults]

FLIGHTS = (
    "id integer, year integer, month integer, day integer, carrier text, flight integer, tailnum text, origin text,"
    " dest text, air_time double precision, distance integer"
)
STEPS = (
    "after BEGIN", "sql: opening", "sql: copying", "sql: staging", "sql: staged",
    "before PREPARED", "after COMMITTING", "sql: publishing", "sql: before COMMIT", "sql: after COMMIT",
    "before COMPLETED", "after clean-up",
)  # fmt: skip


@pytest.mark.parametrize(
    "api",
    [
        pytest.param("objects", marks=pytest.mark.thorough),
        pytest.param("options", marks=[FORMAT_API, pytest.mark.long]),
    ],
)
def test_the_table_holds_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, dsn: str, api: str
) -> None:
    # No key: a flight that came twice would be there twice, not be refused.
    target = Target(dsn, f"CREATE TABLE t ({FLIGHTS})")
    job, rows = make_job(tmp_path, "append", api, dsn=dsn, steps=STEPS)
    job.run_all()
    found = Counter(target.run(f"SELECT {', '.join(COLUMNS)} FROM t"))
    wanted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert found - wanted == Counter()
    assert wanted - found == Counter()
    assert (target.attempts(), target.staged()) == (0, 0)
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3


@pytest.mark.thorough
def test_the_table_holds_each_flight_once_if_the_log_is_in_the_same_database(tmp_path: Path, dsn: str) -> None:
    target = Target(dsn, f"CREATE TABLE t ({FLIGHTS})")
    steps = (*STEPS, "log: newest checked", "log: entry inserted", "log: before commit", "log: committed")
    job, rows = make_job(tmp_path, "append", "objects", dsn=dsn, steps=steps)
    job.recovery = location(dsn).url()
    job.run_all()
    found = Counter(target.run(f"SELECT {', '.join(COLUMNS)} FROM t"))
    assert found == Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert location(dsn).steps() == ["sink"]
    assert not (tmp_path / "checkpoint" / "outfall").exists()


@pytest.mark.long
def test_counts_are_those_of_the_flights_however_often_the_driver_is_killed(tmp_path: Path, dsn: str) -> None:
    """The state that Spark keeps and the table that is upserted from it go back and on together."""
    target = Target(dsn, "CREATE TABLE t (carrier text PRIMARY KEY, flights bigint, distance bigint)")
    job, rows = make_job(tmp_path, "upsert", "objects", dsn=dsn, steps=STEPS)
    job.run_all()
    counted = rows.group_by("carrier").aggregate([("id", "count"), ("distance", "sum")])
    wanted = list(zip(*(counted[name].to_pylist() for name in ("carrier", "id_count", "distance_sum")), strict=True))
    assert target.run('SELECT * FROM t ORDER BY carrier COLLATE "C"') == sorted(wanted)
    assert sum(row[1] for row in wanted) == rows.num_rows
    assert pc.sum(rows["distance"]).as_py() == sum(row[2] for row in wanted)


@pytest.mark.long
def test_the_newest_change_of_each_key_is_there_however_often_the_driver_is_killed(tmp_path: Path, dsn: str) -> None:
    target = Target(dsn, "CREATE TABLE t (tailnum text PRIMARY KEY, id integer, distance integer NOT NULL)")
    job, rows = make_job(tmp_path, "changes", "objects", dsn=dsn, steps=STEPS)
    job.run_all()
    newest = {row["tailnum"] or "": row for row in sorted(rows.to_pylist(), key=lambda row: row["id"])}
    wanted = sorted((key, row["id"], row["distance"]) for key, row in newest.items() if row["id"] % 7)
    assert target.run('SELECT * FROM t ORDER BY tailnum COLLATE "C"') == wanted
    assert len(wanted) < len(newest)
