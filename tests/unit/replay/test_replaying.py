"""Each letter is replayed once, whatever kills the run, reads in another order, or runs beside it."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from outfall.capabilities import RowIdentity
from outfall.dead_letter import DeadLetter
from outfall.delta import DeltaSink
from outfall.errors import (
    CapabilityError,
    ConfigurationError,
    FencedError,
    ForeignRecordsError,
    RecordError,
    ValueRefusedError,
)
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.url import recovery_config
from outfall.replay.dead_letters import FoundDeadLetter
from outfall.replay.record import read_record
from outfall.replay.replaying import DeadLetterReplay, ReplayResult
from outfall.replay.rows import RowMaker
from outfall.testing import MemoryRecoveryConfig, crash_at
from outfall.trace_points import listen
from outfall.wrappers import BatchingSink, DeadLetteringSink
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.refusing import RefusingSink
from tests.unit.support.shelf import Shelf, ShelfSink, values_on
from tests.unit.support.warehouse import Warehouse, rows_of

START = datetime(2026, 11, 23, tzinfo=UTC)
ROWS = RowMaker(pa.schema([("id", pa.int64()), ("name", pa.string())]))


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def letter(number: int, row: str | None = None) -> FoundDeadLetter:
    text = json.dumps({"id": number}) if row is None else row
    return FoundDeadLetter(
        DeadLetter(text, "bad", "sink", 0, time=START + timedelta(seconds=number)), f"letter {number}"
    )


def letters(*numbers: int) -> list[FoundDeadLetter]:
    return [letter(number) for number in numbers]


def replayed(
    sink: Any, recovery: RecoveryConfig, found: Sequence[FoundDeadLetter], *, rows: RowMaker = ROWS, most: int = 3
) -> ReplayResult:
    return DeadLetterReplay(sink, recovery, "replay", rows, most=most).run(found)


class Target:
    """A sink that is exactly once, whose rows are seen."""

    def __init__(self) -> None:
        self.warehouse = Warehouse()
        self.sink = NamedStagingSink(self.warehouse, "target")
        self.recovery = MemoryRecoveryConfig()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in rows_of(self.warehouse))


class KeyedSink(NamedStagingSink):
    """Writes by a key that a test changes."""

    key = "id"

    def row_identity(self) -> RowIdentity | None:
        return RowIdentity("upsert", (self.key,))


def test_another_key_is_refused_before_letters_are_selected_for_it() -> None:
    target = Target()
    sink = KeyedSink(target.warehouse, "target")
    assert replayed(sink, target.recovery, letters(1, 2)).replayed == 2
    sink.key = "name"
    with pytest.raises(ForeignRecordsError, match="restore the earlier options; or, for the rows of new dead letters"):
        replayed(sink, target.recovery, letters(1, 2, 3))
    sink.key = "id"
    assert replayed(sink, target.recovery, letters(1, 2, 3)).replayed == 1
    assert target.ids() == [1, 2, 3]


def test_letters_come_once_also_when_they_come_again_among_new_ones_in_another_order() -> None:
    target = Target()
    result = replayed(target.sink, target.recovery, letters(*range(8)))
    assert (result.found, result.before, result.replayed, result.epochs) == (8, 0, 8, [0, 1, 2])
    result = replayed(target.sink, target.recovery, letters(9, 7, 5, 3, 1, 8, 0))
    assert (result.found, result.before, result.replayed, result.epochs) == (7, 5, 2, [3])
    result = replayed(target.sink, target.recovery, letters(*range(10)))
    assert (result.before, result.replayed, result.epochs) == (10, 0, [])
    assert target.ids() == list(range(10))


def test_equal_letters_are_letters_of_their_own() -> None:
    target = Target()
    replayed(target.sink, target.recovery, letters(1, 1, 2), most=1)
    replayed(target.sink, target.recovery, letters(1, 2, 1, 1))
    assert target.ids() == [1, 1, 1, 2]


POINTS = [
    "replay: letters read",
    "replay: letters chosen",
    "replay: letters chosen#2",
    "replay: letters written",
    *(
        f"{name}#{time}"
        for name in ("before BEGIN", "after BEGIN", "before PREPARED", "after PREPARED")
        for time in (1, 2, 3, 4)
    ),
    "fake: published one",
    "fake: published one#2",
    "before COMPLETED",
    "after COMPLETED#5",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_is_finished_by_the_next_one(point: str) -> None:
    target = Target()
    with crash_at(point, required=True):
        replayed(target.sink, target.recovery, letters(*range(5)))
    # The last one's letters are gone, and others are there: what was chosen is written all the same.
    chosen = read_record(target.recovery, "replay").ids
    gone = [found for found in letters(4, 0, 1, 2, 3) if found.id not in chosen]
    result = replayed(target.sink, target.recovery, [letter(7), *gone])
    assert target.ids() == [0, 1, 2, 3, 4, 7]
    assert result.found == 1 + len(gone)


def test_of_two_that_run_at_once_one_goes_on() -> None:
    target = Target()
    beside: list[ReplayResult] = []

    def step(name: str) -> None:
        if name == "after PREPARED" and not beside:
            beside.append(ReplayResult())
            beside[0] = replayed(target.sink, target.recovery, letters(*range(6)), most=4)

    stop = listen(step)
    try:
        with pytest.raises(FencedError):
            replayed(target.sink, target.recovery, letters(*range(6)), most=4)
    finally:
        stop()
    assert target.ids() == list(range(6))
    assert beside[0].replayed == 6


def test_one_that_sleeps_finds_what_another_one_has_chosen_meanwhile() -> None:
    target = Target()
    beside: list[ReplayResult] = []

    def step(name: str) -> None:
        if name == "replay: letters read" and not beside:
            beside.append(ReplayResult())
            beside[0] = replayed(target.sink, target.recovery, letters(2, 3, 4))

    stop = listen(step)
    try:
        result = replayed(target.sink, target.recovery, letters(*range(6)), most=4)
    finally:
        stop()
    assert target.ids() == list(range(6))
    assert (result.before, result.replayed, beside[0].replayed) == (3, 3, 3)


def test_a_choice_that_somebody_made_meanwhile_and_did_not_write_is_written_first() -> None:
    target = Target()
    slept = False

    def step(name: str) -> None:
        nonlocal slept
        if name == "replay: letters read" and not slept:
            slept = True
            with crash_at("replay: letters chosen", required=True):
                replayed(target.sink, target.recovery, letters(2, 3, 4))

    stop = listen(step)
    try:
        result = replayed(target.sink, target.recovery, letters(*range(6)), most=6)
    finally:
        stop()
    assert target.ids() == list(range(6))
    assert (result.replayed, result.epochs) == (6, [0, 1])


def test_what_cannot_be_turned_back_is_left_and_named_until_it_can_be() -> None:
    target = Target()
    found = [letter(1), letter(2, '{"id": "two"}'), letter(3, "three"), letter(4, '{"id": 4, "more": 1}')]
    result = replayed(target.sink, target.recovery, found)
    assert (result.replayed, result.left) == (1, 3)
    assert [place for place, _ in result.reasons] == ["letter 2", "letter 3", "letter 4"]
    wider = RowMaker(pa.schema([("id", pa.string()), ("more", pa.int64())]))
    result = replayed(target.sink, target.recovery, found, rows=wider)
    assert (result.before, result.replayed, result.left) == (1, 2, 1)
    assert {str(row["id"]) for row in rows_of(target.warehouse)} == {"1", "two", "4"}


def test_rows_with_other_columns_have_epochs_of_their_own() -> None:
    target = Target()
    found = [letter(n, json.dumps({"id": n} | ({"name": "x"} if n % 2 else {}))) for n in range(6)]
    result = replayed(target.sink, target.recovery, found)
    assert len(result.epochs) == 2
    assert sorted(tuple(row) for row in rows_of(target.warehouse)) == [("id",)] * 3 + [("id", "name")] * 3


def test_what_is_refused_again_is_a_letter_again_that_waits_for_the_next_run() -> None:
    sink, kept, recovery = RefusingSink(Warehouse()), NamedStagingSink(Warehouse(), "letters"), MemoryRecoveryConfig()
    both = DeadLetteringSink(sink, kept)

    def here() -> list[FoundDeadLetter]:
        again = [FoundDeadLetter(DeadLetter(**row), "again") for row in rows_of(kept.warehouse)]
        return [*letters(1, -2, 3), *again]

    def growing() -> Any:
        for position in range(100):
            if position < len(here()):
                yield here()[position]

    with crash_at("task: after write#4", required=True):
        DeadLetterReplay(both, recovery, "replay", ROWS, most=1).run(growing())
    result = DeadLetterReplay(both, recovery, "replay", ROWS, most=1).run(growing())
    assert (result.replayed, len(result.epochs)) == (2, 2)
    assert len(rows_of(kept.warehouse)) == 1, "not again in the same run"
    (again,) = rows_of(kept.warehouse)
    assert (again["step"], again["reason"]) == ("replay", "below nought")
    assert replayed(both, recovery, here()).replayed == 1


def test_without_a_place_for_letters_a_row_that_is_refused_again_fails_the_run_and_stays_chosen() -> None:
    sink, recovery = RefusingSink(Warehouse()), MemoryRecoveryConfig()
    for _ in range(2):
        with pytest.raises(ValueRefusedError):
            replayed(sink, recovery, letters(1, -2))
    kept = NamedStagingSink(Warehouse(), "letters")
    with pytest.raises(ForeignRecordsError, match="recovery data is of the sink"):
        replayed(DeadLetteringSink(sink, kept), recovery, letters(1, -2))


def test_rows_are_routed_to_parts_by_the_key() -> None:
    shelf, recovery = Shelf(), MemoryRecoveryConfig()
    with pytest.raises(ConfigurationError, match="--key"):
        DeadLetterReplay(ShelfSink(shelf), recovery, "replay", ROWS)
    keyed = [letter(n, json.dumps({"id": n, "name": str(n % 3)})) for n in range(6)] + [letter(9)]
    result = DeadLetterReplay(ShelfSink(shelf), recovery, "replay", ROWS, key="name").run(keyed)
    assert sorted(row["id"] for row in values_on(shelf)) == list(range(6))
    assert [why for _, why in result.reasons] == ["the key 'name' is missing or NULL"]
    assert DeadLetterReplay(ShelfSink(shelf), recovery, "replay", ROWS, key="name").run(keyed).before == 6


def test_a_sink_that_holds_rows_back_delivers_them(tmp_path: Path) -> None:
    sink = BatchingSink(FileSink(str(tmp_path / "out")), batch_size=100, across_epochs=True)
    replayed(sink, MemoryRecoveryConfig(), letters(*range(5)))
    assert ids_in(tmp_path / "out") == list(range(5))


def test_a_sink_that_changes_the_dataframe_is_refused() -> None:
    sink = HttpSink("http://127.0.0.1/x", idempotency="content", body="record")
    with pytest.raises(CapabilityError, match="without Spark"):
        DeadLetterReplay(sink, MemoryRecoveryConfig(), "replay", ROWS)


def test_logs_that_are_not_of_one_copy_are_refused_and_nothing_is_written() -> None:
    target = Target()
    replayed(target.sink, target.recovery, letters(1, 2))
    target.recovery.open("replay-letters").erase()
    with pytest.raises(RecordError, match="do not belong to the same copy"):
        replayed(target.sink, target.recovery, letters(1, 2, 3))
    assert target.ids() == [1, 2]


def test_the_rows_do_not_stay_in_the_recovery_data() -> None:
    target = Target()
    replayed(target.sink, target.recovery, letters(1, 2))
    record = read_record(target.recovery, "replay")
    assert (record.rows, sum(record.ids.values())) == (None, 2)


# --- killed


def ids_in(place: Path) -> list[int]:
    lines = [line for path in place.glob("part-*") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


def live(place: Path, found: Sequence[FoundDeadLetter], steps: int) -> None:
    """Run a replay in this process, and kill it at a step."""
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    left = steps

    def count(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    listen(count)
    try:
        replayed(FileSink(str(place / "out")), recovery_config(str(place / "recovery")), found, most=4)
    except FencedError:
        os._exit(3)
    os._exit(0)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 12))])
def test_each_letter_is_there_once_when_runs_are_killed_at_random(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    processes = multiprocessing.get_context("fork")
    there = [*letters(*range(10)), letter(3)]
    kills = ended = 0
    for _ in range(40):
        if ended and kills >= 5:
            break
        found = chance.sample(there, len(there))
        # Mostly one at a time, sometimes two.
        lives = [
            processes.Process(target=live, args=(tmp_path, found, chance.randint(1, 90)))
            for _ in range(chance.choice((1, 1, 2)))
        ]
        for life in lives:
            life.start()
        for life in lives:
            life.join()
        assert {life.exitcode for life in lives} <= {0, 3, -signal.SIGKILL}
        kills += sum(life.exitcode == -signal.SIGKILL for life in lives)
        ended = any(life.exitcode == 0 for life in lives)
        if kills < 5:
            there += letters(len(there) + 100)
    last = processes.Process(target=live, args=(tmp_path, there, 10**6))
    last.start()
    last.join()
    assert last.exitcode == 0
    expected = Counter(json.loads(found.dead_letter.row)["id"] for found in there)
    assert Counter(ids_in(tmp_path / "out")) == expected


# --- what targets say of their columns


def test_tables_say_which_types_their_columns_have(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("price", pa.decimal128(9, 2))])
    write_deltalake(tmp_path / "delta", columns.empty_table())
    sink = DeltaSink(str(tmp_path / "delta"))
    rows = RowMaker(sink.row_schema())
    row = {"id": 1, "day": "2026-11-23", "price": "1.50"}
    result = replayed(sink, MemoryRecoveryConfig(), [letter(1, json.dumps(row)), letter(2, '{"new": 1}')], rows=rows)
    assert (result.replayed, [why for _, why in result.reasons]) == (1, ["the target has no column 'new'"])
    (found,) = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert found == {"id": 1, "day": date(2026, 11, 23), "price": Decimal("1.50")}


@pytest.mark.thorough
def test_an_iceberg_table_says_so_too(tmp_path: Path) -> None:
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalogue.db", "warehouse": f"file://{tmp_path}/lake"}
    catalogue = load_catalog("lake", **options)
    catalogue.create_namespace("db")
    columns = {"id": pa.int64(), "tags": pa.list_(pa.string()), "data": pa.binary(), "at": pa.timestamp("us", tz="UTC")}
    catalogue.create_table("db.t", pa.schema(columns))
    sink = IcebergSink("db.t", catalog="lake", catalog_options=options)
    row = '{"id": 1, "tags": ["a"], "data": "AP8=", "at": "2026-11-23T00:00:00Z"}'
    assert replayed(sink, MemoryRecoveryConfig(), [letter(1, row)], rows=RowMaker(sink.row_schema())).replayed == 1
    (found,) = catalogue.load_table("db.t").scan().to_arrow().to_pylist()
    assert found == {"id": 1, "tags": ["a"], "data": b"\x00\xff", "at": START}
