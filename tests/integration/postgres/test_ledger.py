"""The ledger against the log: commits that the server lost, copies of the log, other spellings."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from outfall.errors import (
    ConfigurationError,
    FencedError,
    OutfallError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
)
from outfall.postgres import PostgresSink
from outfall.testing.crash_points import crash_at
from outfall.wrappers import FanOutSink
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server
from tests.integration.support.sql import first, listening, rows, run

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"
APPEND: dict[str, Any] = {}
UPSERT = {"write_mode": "upsert", "key_columns": "id"}
DELETE = {"write_mode": "delete", "key_columns": "id"}
SOURCE = {"offset_columns": "id"}
PARTS = {"parts": 2, "offset_keys": "ledger"}
DELIVERIES = [APPEND, UPSERT, DELETE, SOURCE, PARTS]
NAMES = ["append", "upsert", "delete", "source offsets", "parts"]


@pytest.fixture
def target(dsn: str) -> Target:
    return Target(dsn, TABLE)


def write(sink: Any, recovery: str, epoch: int, *ids: int) -> Any:
    """Run an epoch of these rows, whatever the delivery."""
    made = rows(*ids)
    return run(sink, recovery, epoch, [("k", row) for row in made] if sink.options.parts else made)


# --- commits that the server lost

LOST = {
    "the newest": (2, "after open target"),
    "the last two": (1, "after open target"),
    "its BEGIN too": (2, "before BEGIN"),
    "all": (0, "before BEGIN"),
}
"""At which step of which epoch the last commit was made that the server keeps."""


@pytest.mark.parametrize(
    ("options", "lost"),
    first(
        1,
        [
            # Upserts and deletes share the code of appends.
            *(
                pytest.param(
                    options, "the newest", id=name, marks=pytest.mark.thorough if "write_mode" in options else []
                )
                for options, name in zip(DELIVERIES, NAMES, strict=True)
            ),
            pytest.param(APPEND, "its BEGIN too", id="its BEGIN too"),
            *(pytest.param(APPEND, lost, id=lost, marks=pytest.mark.thorough) for lost in ("the last two", "all")),
        ],
    ),
)
def test_a_server_that_lost_the_newest_commits_is_noticed(
    target: Target, recovery: str, options: dict[str, Any], lost: str
) -> None:
    target.run("INSERT INTO t SELECT generate_series(0, 9) WHERE %s", options == DELETE)
    sink = target.sink(**options)
    copies: list[Callable[[], None]] = []
    under_way = 0

    def copy(step: str) -> None:
        if LOST[lost] == (under_way, step):
            copies.append(target.copy())

    with listening(copy):
        for under_way in range(3):
            write(sink, recovery, under_way, under_way)
    (restore,) = copies
    restore()
    for _ in range(2):
        with pytest.raises(TargetLostError, match=r"step 'sink', epoch 3"):
            write(sink, recovery, 3, 3)


@pytest.mark.thorough
@pytest.mark.faults
@pytest.mark.parametrize(
    "options",
    [APPEND, *(pytest.param(options, marks=pytest.mark.long) for options in DELIVERIES[1:])],
    ids=NAMES,
)
def test_a_server_that_confirms_before_it_writes_is_noticed_when_it_is_killed(
    mortal_postgres: Server, recovery: str, options: dict[str, Any]
) -> None:
    """What is written is what was there when somebody else waited for his commit."""
    dsn = make_conninfo(mortal_postgres.new_database(), options="-csynchronous_commit=off")
    target = Target(dsn, f"{TABLE}; CREATE TABLE other (x bigint)")
    target.run("INSERT INTO t SELECT generate_series(0, 9) WHERE %s", options == DELETE)
    sink = target.sink(**options)

    def wait_for_a_commit(step: str) -> None:
        if step == "after open target":
            target.run("SET synchronous_commit = on; INSERT INTO other VALUES (1)")

    with listening(wait_for_a_commit):
        for epoch in range(3):
            write(sink, recovery, epoch, epoch)
    mortal_postgres.kill()
    mortal_postgres.start()
    assert (2 in target.ids()) == (options == DELETE), "the newest epoch is lost"
    with pytest.raises(TargetLostError, match=r"step 'sink', epoch 3"):
        write(sink, recovery, 3, 3)


def test_rows_that_were_lost_before_they_were_recorded_are_written_again(target: Target, recovery: str) -> None:
    """By the source's offsets tasks publish by themselves. Here the server loses one before the driver settles."""
    write(target.sink(**SOURCE), recovery, 0, 0)
    with listening(lambda step: copies.append(target.copy()) if step == "after open target" else None):
        copies: list[Callable[[], None]] = []
        with crash_at("after PREPARED"):
            write(target.sink(**SOURCE), recovery, 1, 1)
    copies[0]()
    assert target.ids() == [0]
    write(target.sink(**SOURCE), recovery, 1, 1)
    write(target.sink(**SOURCE), recovery, 2, 2)
    assert target.ids() == [0, 1, 2]
    assert target.attempts() == 0


# --- copies of the log


class Race:
    """Two drivers at once, each on a copy of one log and with rows of its own for the same epoch."""

    def __init__(self, target: Target, folder: Path, options: dict[str, Any]) -> None:
        self._sink = target.sink(**options, on_existing="resume")
        self.logs = [str(folder / name) for name in "ab"]
        write(self._sink, self.logs[0], 0, 0)
        shutil.copytree(self.logs[0], self.logs[1])
        self.ends: dict[int, Any] = {}

    def run(self, meet_at: str | None) -> set[int]:
        """Run epoch 1 on both, which meet at a step, and return whose was completed."""
        meeting = threading.Barrier(2)

        def meet(step: str) -> None:
            if step == meet_at:
                meeting.wait(60)

        with listening(meet):
            drivers = [threading.Thread(target=self._drive, args=(driver,)) for driver in (1, 2)]
            for driver in drivers:
                driver.start()
            for driver in drivers:
                driver.join(120)
        return {driver for driver, end in self.ends.items() if not isinstance(end, Exception)}

    def _drive(self, driver: int) -> None:
        try:
            self.ends[driver] = write(self._sink, self.logs[driver - 1], 1, 10 * driver, 10 * driver + 1)
        except OutfallError as error:
            self.ends[driver] = error


@pytest.mark.parametrize("options", first(1, [APPEND, SOURCE, PARTS]), ids=["append", "source offsets", "parts"])
@pytest.mark.parametrize(
    ("meet_at", "rounds"),
    first(
        1,
        [
            ("after BEGIN", 2),
            pytest.param("after BEGIN", 40, marks=pytest.mark.long),
            pytest.param(None, 3, marks=pytest.mark.thorough),
        ],
    ),
)
def test_of_two_drivers_on_copies_of_one_log_none_takes_the_others_rows_for_its_own(
    target: Target, tmp_path: Path, options: dict[str, Any], meet_at: str | None, rounds: int
) -> None:
    for number in range(rounds):
        target.run("TRUNCATE t")
        race = Race(target, tmp_path / str(number), options)
        completed = race.run(meet_at)
        published = sorted(row for driver in completed for row in (10 * driver, 10 * driver + 1))
        # Both may be refused; then nobody's rows were reported as written.
        assert len(completed) <= 1
        if completed or options == APPEND:
            assert target.ids() == [0, *published]
        for driver, end in race.ends.items():
            assert driver in completed or isinstance(end, FencedError | TargetAheadError), repr(end)


def test_an_epoch_that_a_copy_of_an_older_generation_published_meanwhile_is_not_taken_for_this_drivers_own(
    target: Target, tmp_path: Path
) -> None:
    logs = [str(tmp_path / name) for name in "ab"]
    write(target.sink(), logs[0], 0, 0)
    shutil.copytree(logs[0], logs[1])
    with crash_at("after BEGIN"):
        write(target.sink(), logs[1], 1, 20)
    met: list[str] = []

    def publish_in_between(step: str) -> None:
        if step == "after BEGIN" and not met:
            met.append(step)
            write(target.sink(), logs[0], 1, 10)

    with listening(publish_in_between), pytest.raises(FencedError):
        write(target.sink(), logs[1], 1, 20)
    assert target.ids() == [0, 10]


def test_an_epoch_that_is_recorded_in_both_copies_is_there_once_and_one_of_them_goes_on(
    target: Target, tmp_path: Path
) -> None:
    logs = [str(tmp_path / name) for name in "ab"]
    with crash_at("after PREPARED"):
        write(target.sink(), logs[0], 0, 0)
    shutil.copytree(logs[0], logs[1])
    for log in logs:
        assert write(target.sink(), log, 0, 0).skipped
    assert target.ids() == [0]
    write(target.sink(), logs[0], 1, 1)
    with pytest.raises(TargetAheadError, match="another copy of it is in use"):
        write(target.sink(), logs[1], 1, 1)
    assert target.ids() == [0, 1]


# --- spellings of one table


SPELLINGS = [("t", "public.t"), ('public."t"', "T"), ("a.t", "t"), ("t", "a.t")]


@pytest.mark.parametrize("options", [APPEND, pytest.param(PARTS, marks=pytest.mark.thorough)], ids=["append", "parts"])
@pytest.mark.parametrize(("before", "now"), SPELLINGS)
def test_a_table_is_known_by_any_of_its_names(
    dsn: str, tmp_path: Path, before: str, now: str, options: dict[str, Any]
) -> None:
    """The checkpoint is lost, and the table is called otherwise. In another schema the search path finds it."""
    target = Target(dsn, TABLE)
    if "a.t" in (before, now):
        target.run("CREATE SCHEMA a; ALTER TABLE t SET SCHEMA a")
        dsn = make_conninfo(dsn, options="-csearch_path=a")
    write(PostgresSink(dsn, before, **options), str(tmp_path / "lost"), 0, 1)
    with pytest.raises(TargetNotEmptyError, match="under another checkpoint"):
        write(PostgresSink(dsn, now, **options), str(tmp_path / "new"), 0, 2)


def test_a_table_of_the_same_name_in_another_schema_is_another_table(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn, f"{TABLE}; CREATE SCHEMA a; CREATE TABLE a.t AS SELECT 9 AS id, 'x' AS name")
    write(target.sink(), str(tmp_path / "one"), 0, 1)
    write(PostgresSink(dsn, "a.t"), str(tmp_path / "two"), 0, 2)
    assert target.run("SELECT target, step FROM outfall.ledger ORDER BY 1") == [("a.t", "sink"), ("t", "sink")]


def test_two_names_of_one_table_are_one_place(target: Target, recovery: str) -> None:
    both: Any = FanOutSink(one=target.sink(), other=PostgresSink(target.dsn, "public.t"))
    with pytest.raises(ConfigurationError, match="one and other"):
        run(both, recovery, 0, rows(1))
    with pytest.raises(ConfigurationError, match="dead_letter_table is the target table"):
        run(target.sink(dead_letter_table="public.t"), recovery, 0, rows(1))
