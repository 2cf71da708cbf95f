"""The driver is killed (-9) while it streams real flights into a table, and started again until the stream ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import FORMAT_API, KILLS, make_job
from tests.integration.support.sql import FLIGHTS, THOROUGH, Make

pytestmark = [pytest.mark.spark, pytest.mark.faults]

STEPS = (
    "after BEGIN", "sql: opening", "sql: copying", "sql: staging", "sql: staged", "before PREPARED", "after COMMITTING",
    "sql: publishing", "sql: moving", "sql: before COMMIT", "sql: after COMMIT", "before COMPLETED", "after clean-up",
)  # fmt: skip
LOG_STEPS = ("log: newest checked", "log: entry inserted", "log: before commit", "log: committed")


@pytest.mark.parametrize(
    ("api", "log"),
    [
        pytest.param("objects", "database", marks=THOROUGH),  # with the steps of the other one
        pytest.param("objects", "files", marks=pytest.mark.long),
        pytest.param("options", "database", marks=[FORMAT_API, pytest.mark.long]),
        pytest.param("options", "files", marks=[FORMAT_API, pytest.mark.long]),
    ],
)
def test_the_table_holds_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, make: Make, api: str, log: str
) -> None:
    # No key: a flight that came twice would be there twice, not be refused.
    target = make(f"CREATE TABLE t ({FLIGHTS})")
    steps = STEPS if log == "files" else (*STEPS, *LOG_STEPS)
    job, rows = make_job(tmp_path, "append", api, dsn=target.address(), steps=steps)
    if log == "database":
        job.recovery = target.location().url()
    job.run_all()
    found = Counter(target.read(f"SELECT {', '.join(COLUMNS)} FROM t"))
    wanted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    lost, doubled = wanted - found, found - wanted
    print(f"{job.kills} kills, {wanted.total()} rows, {lost.total()} lost, {doubled.total()} doubled")
    assert (lost, doubled) == (Counter(), Counter())
    if target.tables("attempts"):  # a query of MySQL has them in a database of their own
        assert (target.attempts(), target.staged()) == (0, 0)
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3
    if log == "database":
        assert target.location().steps() == ["sink"]
        assert not (tmp_path / "checkpoint" / "outfall").exists()


@pytest.mark.long
def test_counts_are_those_of_the_flights_however_often_the_driver_is_killed(tmp_path: Path, make: Make) -> None:
    """The state that Spark keeps and the table that is upserted from it go back and on together."""
    target = make("CREATE TABLE t (carrier varchar(9) PRIMARY KEY, flights bigint, distance bigint)")
    job, rows = make_job(tmp_path, "upsert", "objects", dsn=target.address(), steps=STEPS)
    job.run_all()
    counted = rows.group_by("carrier").aggregate([("id", "count"), ("distance", "sum")])
    wanted = list(zip(*(counted[name].to_pylist() for name in ("carrier", "id_count", "distance_sum")), strict=True))
    assert sorted(target.rows()) == sorted(wanted)
    assert sum(row[1] for row in wanted) == rows.num_rows


@pytest.mark.long
def test_the_newest_change_of_each_key_is_there_however_often_the_driver_is_killed(tmp_path: Path, make: Make) -> None:
    target = make("CREATE TABLE t (tailnum varchar(9) PRIMARY KEY, id int, distance int NOT NULL)")
    job, rows = make_job(tmp_path, "changes", "objects", dsn=target.address(), steps=STEPS)
    job.run_all()
    newest = {row["tailnum"] or "": row for row in sorted(rows.to_pylist(), key=lambda row: row["id"])}
    wanted = [(key, row["id"], row["distance"]) for key, row in newest.items() if row["id"] % 7]
    assert sorted(target.rows()) == sorted(wanted)
    assert len(wanted) < len(newest)
