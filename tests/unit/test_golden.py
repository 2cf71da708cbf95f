"""Recovery data that earlier versions wrote is read, and gone on from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from outfall.recovery import RecoveryConfig, history
from tests.unit.support.golden import LARGE, Past, stores
from tests.unit.support.journals import kinds

GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(directory.name for directory in GOLDEN.iterdir())


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


@pytest.fixture(params=["checkpoint", "sqlite"])
def store(request: pytest.FixtureRequest, release: Path) -> RecoveryConfig:
    return stores(release)[request.param]


def test_what_was_counted_is_read(store: RecoveryConfig) -> None:
    assert [(s.epoch, s.batch, s.rows, s.skipped, s.rows_held) for s in history(store, "held")] == [
        (0, 0, 3, 0, 3),
        (0, 0, 0, 3, 0),
        (1, None, 0, 0, 0),
        (2, 1, 3, 0, 3),
    ]


def test_every_kind_of_entry_is_among_what_is_read(release: Path) -> None:
    recovery = str(release / "checkpoint")
    found = {kind for step in ("held", "prepared", "abandoned") for kind in kinds(recovery, step)}
    assert found == {"begin", "prepared", "committing", "completed", "abandoned", "skipped"}


def test_held_rows_are_delivered_and_the_next_batch_comes(store: RecoveryConfig) -> None:
    past = Past(store)
    assert past.run("held", 1)
    past.driver("held").drain()
    assert sorted(past.setup.found()) == [(1, LARGE, number) for number in range(3)]
    assert not past.run("held", 2)


@pytest.mark.parametrize("step", ["prepared", "abandoned"])
def test_an_epoch_that_was_under_way_is_finished(store: RecoveryConfig, step: str) -> None:
    past = Past(store)
    assert not past.run(step, 1)
    past.driver(step).drain()
    assert {row[0] for row in past.setup.found()} >= {1}
    assert max(past.setup.found().values()) == 1
    assert history(store, step)[-1].rows_held == 0
