"""The driver is killed (-9) while it streams real flights into a table, and started again until the stream ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import FORMAT_API, KILLS, make_job
from tests.integration.support.mariadb import MariaDB

pytestmark = [pytest.mark.spark, pytest.mark.faults]

FLIGHTS = (
    "id INT, year INT, month INT, day INT, carrier VARCHAR(9), flight INT, tailnum VARCHAR(9), origin VARCHAR(9),"
    " dest VARCHAR(9), air_time DOUBLE, distance INT"
)
STEPS = (
    "after BEGIN", "sql: opening", "sql: staging", "sql: staged", "before PREPARED", "after COMMITTING",
    "sql: publishing", "sql: moving", "sql: before COMMIT", "sql: after COMMIT", "before COMPLETED", "after clean-up",
)  # fmt: skip


def as_text(values: Sequence[object]) -> tuple[str, ...]:
    """Return values as the server's client shows them."""
    return tuple("NULL" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
                 for value in values)  # fmt: skip


@pytest.mark.parametrize(
    "api",
    [
        pytest.param("objects", marks=pytest.mark.thorough),
        pytest.param("options", marks=[FORMAT_API, pytest.mark.long]),
    ],
)
def test_the_table_holds_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, server: MariaDB, database: str, api: str
) -> None:
    # No key: a flight that came twice would be there twice, not be refused.
    target = Target(server, database, f"CREATE TABLE t ({FLIGHTS})")
    job, rows = make_job(tmp_path, "append", api, dsn=target.dsn(), steps=STEPS)
    job.run_all()
    found = Counter(target.run(f"SELECT {', '.join(f'`{name}`' for name in COLUMNS)} FROM t"))
    wanted = Counter(map(as_text, zip(*(column.to_pylist() for column in rows.columns), strict=True)))
    lost, doubled = wanted - found, found - wanted
    print(f"{job.kills} kills, {wanted.total()} rows, {lost.total()} lost, {doubled.total()} doubled")
    assert (lost, doubled) == (Counter(), Counter())
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3


@pytest.mark.long
def test_counts_are_those_of_the_flights_however_often_the_driver_is_killed(
    tmp_path: Path, server: MariaDB, database: str
) -> None:
    """The state that Spark keeps and the table that is upserted from it go back and on together."""
    target = Target(
        server, database, "CREATE TABLE t (carrier VARCHAR(9) PRIMARY KEY, flights BIGINT, distance BIGINT)"
    )
    job, rows = make_job(tmp_path, "upsert", "objects", dsn=target.dsn(), steps=STEPS)
    job.run_all()
    counted = rows.group_by("carrier").aggregate([("id", "count"), ("distance", "sum")])
    wanted = zip(*(counted[name].to_pylist() for name in ("carrier", "id_count", "distance_sum")), strict=True)
    print(f"{job.kills} kills")
    assert sorted(target.rows()) == sorted(map(as_text, wanted))


@pytest.mark.long
def test_the_newest_change_of_each_key_is_there_however_often_the_driver_is_killed(
    tmp_path: Path, server: MariaDB, database: str
) -> None:
    target = Target(server, database, "CREATE TABLE t (tailnum VARCHAR(9) PRIMARY KEY, id INT, distance INT NOT NULL)")
    job, rows = make_job(tmp_path, "changes", "objects", dsn=target.dsn(), steps=STEPS)
    job.run_all()
    newest = {row["tailnum"] or "": row for row in sorted(rows.to_pylist(), key=lambda row: row["id"])}
    wanted = [(key, row["id"], row["distance"]) for key, row in newest.items() if row["id"] % 7]
    print(f"{job.kills} kills")
    assert sorted(target.rows()) == sorted(map(as_text, wanted))
    assert len(wanted) < len(newest)
