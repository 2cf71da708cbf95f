"""The driver is killed (-9) while it streams real flights into a table, and started again until the stream ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import FORMAT_API, KILLS, make_job
from tests.integration.support.sql import FLIGHTS, THOROUGH, Make, Table

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


@contextmanager
def _watching(target: Table, names: Sequence[str], wrong: list[Any], seen: list[int]) -> Iterator[None]:
    """Compare within the block, in one snapshot each, the rows of all tables with the number in the ledger."""
    over = threading.Event()
    ledger = f"{'outfall' if target.connector == 'mysql' else target.own('ledger').partition('.')[0]}.ledger"
    rows = " + ".join(f"(SELECT count(*) FROM {name})" for name in names)
    counted = f"(SELECT coalesce(sum({target.quote}rows{target.quote}), 0) FROM {ledger} WHERE target = '*')"
    before = 0
    with suppress(Exception):  # there is no ledger yet
        before = int(target.read(f"SELECT {counted}")[0][0])

    def watch() -> None:
        pause = 0.01
        while not over.wait(pause):
            began = time.monotonic()
            with suppress(Exception):  # as above
                ((found, said),) = target.read(f"SELECT {rows}, {counted}")
                seen.append(int(found))
                if int(found) != int(said) - before:
                    wrong.append((found, said))
            # Counting all rows takes ever longer, and must not keep the driver from writing them.
            pause = 3 * (time.monotonic() - began)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.thorough
def test_readers_see_an_epoch_in_all_tables_or_in_none_however_often_the_driver_is_killed(
    tmp_path: Path, make: Make
) -> None:
    names = [f"t{number}" for number in range(50)]
    target = make(f"CREATE TABLE {names[0]} ({FLIGHTS})")
    for name in names[1:]:
        target.run(f"CREATE TABLE {name} ({FLIGHTS})")
    job, rows = make_job(tmp_path, "many tables", "objects", dsn=target.address(), steps=STEPS)
    wrong, seen = list[Any](), list[int]()
    with _watching(target, names, wrong, seen):
        job.run_all()
    wanted = [Counter[Any]() for _ in names]
    for row in rows.to_pylist():
        wanted[row["id"] % len(names)][tuple(row[column] for column in COLUMNS)] += 1
    found = [Counter(target.read(f"SELECT {', '.join(COLUMNS)} FROM {name}")) for name in names]
    lost = sum((some - there).total() for some, there in zip(wanted, found, strict=True))
    doubled = sum((there - some).total() for some, there in zip(wanted, found, strict=True))
    print(
        f"{job.kills} kills, {rows.num_rows} rows in {len(names)} tables, {lost} lost, {doubled} doubled,"
        f" {len(set(seen))} states seen, {len(wrong)} of them with a part of an epoch"
    )
    assert (lost, doubled) == (0, 0)
    assert not wrong
    assert len(set(seen)) > 2
