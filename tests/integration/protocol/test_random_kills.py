"""Drivers are killed (-9) and stopped at random; those that wake find a successor; each row is there once.

Real processes, real servers, no Spark: an epoch takes milliseconds, so that hundreds of drivers die within minutes.
Half are hit at a moment of the clock and half at a step, drawn from a seed. A reader looks on all the time, and in the
end the target is read once more; neither uses the sinks' code. Unless its sink needs a source that brings the same rows
again, each life brings other rows for an epoch: those of exactly one may be there.

`nox -s faults` does 50 kills, half as many pauses and 7 races for each sink; `OUTFALL_TEST_KILLS=200` does more, and
with `-s` pytest prints what the lives came to. A failure names its stretch, which can be run alone.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ROOT
from tests.integration.s3.support import Target as BucketTarget
from tests.integration.support.duck import Duck
from tests.integration.support.hunt import REFUSED, Hunt, Others, Reader, check_reports
from tests.integration.support.iceberg_catalogs import embedded, in_postgres_on_disk
from tests.integration.support.killed_driver import KILLS, SEED
from tests.integration.support.lives import FINISHED, Plan
from tests.integration.support.postgres import Databases, postgres_server
from tests.integration.support.s3 import S3, seaweedfs
from tests.integration.support.warm import session
from tests.integration.support.watched_places import Files, Objects, Place, Table
from tests.integration.support.watched_tables import WatchedDelta, WatchedIceberg
from tests.integration.support.watched_topics import ProxiedModel, Topic

pytestmark = pytest.mark.faults

STRETCH = 20
"""Kills of one query; then another one begins, so that a failure has a short history."""
STRETCHES = math.ceil(KILLS / STRETCH)
RACES = math.ceil(KILLS / 8)

PLACES = (
    "whole files",
    "growing files",
    "postgres by epochs",
    "postgres by source offsets",
    "postgres by parts",
    "s3",
    "s3 rolling",
    "kafka by parts",
    "iceberg",
    "iceberg in postgres",
    "delta",
)
OFTEN = {"whole files": [], **{name: [pytest.mark.thorough] for name in ("kafka by parts", "iceberg", "delta")}}
EACH_PLACE = [pytest.param(name, marks=OFTEN.get(name, [pytest.mark.long])) for name in PLACES]


# --- servers


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server.s3


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    with closing(Duck()) as duck:
        yield duck


@pytest.fixture
def proxied_model() -> Iterator[ProxiedModel]:
    with closing(ProxiedModel()) as model:
        yield model


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> None:
    """Start it where it can import what the tests import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
        patch.setenv("OUTFALL_TEST_WARM", "1")
        forkserver.ensure_running()


@pytest.fixture(scope="module")
def totals() -> Iterator[dict[str, Counter[str]]]:
    """What the lives of all stretches came to, by place."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    yield totals
    for name, counts in totals.items():
        print(f"\n{name}, seed {SEED}")
        for what, count in sorted(counts.items()):
            print(f"  {count:6} {what}")


def make_place(name: str, root: Path, chance: random.Random, request: pytest.FixtureRequest) -> Place:
    """Make an empty target, with what may differ drawn by chance."""
    if name == "whole files":
        return Files(root / "out")
    if name == "growing files":
        return Files(root / "out", parts=2, roll_bytes=chance.choice([None, 1, 500]))
    if name.startswith("postgres "):
        dsn = request.getfixturevalue("databases").new_database()
        if name == "postgres by epochs":
            return Table(dsn)
        if name == "postgres by source offsets":
            return Table(dsn, key=", PRIMARY KEY (epoch, n)", offset_columns=["epoch", "n"])
        columns = {"part_column": "p", "part_offset_column": "o"}
        return Table(dsn, parts=3, **chance.choice([{"offset_keys": "ledger"}, columns]))
    if name == "kafka by parts":
        # Not noida-db: who reads on there after an abort misses what the same producer has committed since.
        model = request.getfixturevalue("proxied_model")
        return Topic(model.address, model.outage, chance.choice([1, 3]))
    if name == "delta":
        return WatchedDelta(request.getfixturevalue("duck"), chance, root / "table")
    if name.startswith("iceberg"):
        root.mkdir(exist_ok=True)
        catalog = embedded(root)
        if name == "iceberg in postgres":
            catalog = in_postgres_on_disk(request.getfixturevalue("databases").new_database(), root)
        return WatchedIceberg(request.getfixturevalue("duck"), chance, catalog)
    # Not moto: it answers with 500 to a part of an upload that another driver has aborted.
    target = BucketTarget(request.getfixturevalue("seaweed"))
    options: dict[str, Any] = {"session_factory": session, "inline_bytes": chance.choice([0, "64 KiB"])}
    if name == "s3 rolling":
        options |= chance.choice([{"roll_rows": 30}, {"roll_bytes": "1 KiB"}, {"roll_rows": 15, "roll_bytes": "2 KiB"}])
    return Objects(target, **options)


# --- the tests


@pytest.mark.thorough
@pytest.mark.parametrize("stretch", range(STRETCHES))
@pytest.mark.parametrize("name", EACH_PLACE)
def test_each_row_is_there_once_however_often_drivers_are_killed_and_stopped(
    name: str, stretch: int, tmp_path: Path, request: pytest.FixtureRequest, totals: dict[str, Counter[str]]
) -> None:
    chance = random.Random(f"{SEED} {name} {stretch}")
    counts: Counter[str] = Counter()
    kills = KILLS * (stretch + 1) // STRETCHES - KILLS * stretch // STRETCHES
    with closing(make_place(name, tmp_path, chance, request)) as place:
        hunt = Hunt(place, tmp_path / f"{SEED} {name} {stretch}", f"{name}, stretch {stretch}", chance, counts)
        watchers = (reader, others) = Reader(place, hunt.query), Others(place)
        with closing(hunt):
            hunt.measure()
            for thread in watchers:
                thread.start()
            try:
                hunt.run(kills, math.ceil(kills / 2), math.ceil(kills / 5))
            finally:
                for thread in watchers:
                    thread.stop()
        complaints = [*reader.complaints, *others.complaints]
        hunt.check(not complaints, "\n".join(complaints))
        hunt.check_rows()
        hunt.collect_garbage()
        left = place.leftovers()
        hunt.check(not left, f"there is still: {left}")
    steps = [set(life.steps()) for life in hunt.lives]
    for entry in ("BEGIN", "PREPARED", "COMPLETED"):
        counts[f"lives that came to {entry}"] = sum(f"after {entry}" in reached for reached in steps)
    counts.update({"lives": len(hunt.lives), "looks": reader.looks} | others.deeds)
    totals[name] += counts
    if kills >= STRETCH // 2:
        outside = counts["killed before BEGIN"] + counts["killed after COMPLETED"]
        hunt.check(outside < kills * 0.8, f"{outside} of {kills} kills came between two epochs")


@pytest.mark.long
@pytest.mark.parametrize("name", PLACES)
def test_of_two_copies_of_a_log_that_start_at_one_instant_one_is_refused(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, totals: dict[str, Counter[str]]
) -> None:
    counts: Counter[str] = Counter()
    for race in range(RACES):
        chance = random.Random(f"{SEED} {name} race {race}")
        root = tmp_path / f"{race}"
        with closing(make_place(name, root, chance, request)) as place:
            if not place.notes_empty_epochs:
                place.counts = [count for count in place.counts if count]
            hunt = Hunt(place, root / "a", f"{name}, race {race}", chance, counts)
            with closing(hunt):
                run_race(hunt, root / "b")
    totals[f"{name}, races"] += counts


def run_race(hunt: Hunt, copied: Path) -> None:
    """Copy a log, with an epoch that is completed, begun or recorded, and start a driver on each copy."""
    hunt.measure()
    if hunt.chance.random() < 0.7:
        hunt.kill()
    hunt.settle_down()
    copy = hunt.copy(copied)
    with closing(copy):
        until = hunt.query.numbers("offsets")[-1] + 2
        at = time.monotonic() + 0.3
        sides = (hunt, copy)
        rivals = [side.start(Plan(until=until, at=at + hunt.chance.uniform(0, 0.02))) for side in sides]
        for side in sides:
            side.settle_down()
        outcomes = [life.outcome() for life in rivals]
        went_on = [side for side, (outcome, _) in zip(sides, outcomes, strict=True) if outcome == FINISHED]
        hunt.counts[" and ".join(sorted(outcome for outcome, _ in outcomes))] += 1
        for outcome, text in outcomes:
            # Who comes when the other has completed an epoch has an older copy, as far as anybody can tell.
            expected = outcome in REFUSED | {FINISHED, "TargetAheadError"}
            hunt.check(expected, f"one of two copies ended with {outcome}: {text}")
        hunt.check(len(went_on) < 2, "both copies went on")
        if went_on:
            went_on[0].end()
            went_on[0].check_rows()
        wrong = [text for side in sides for text in check_reports(side.query, hunt.place.rows())]
        hunt.check(not wrong, "\n".join(wrong))
