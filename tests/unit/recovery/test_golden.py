"""Recovery data that earlier versions wrote is read, and gone on from."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from outfall.errors import FencedError
from outfall.recovery import RecoveryConfig, history
from outfall.recovery.entries import Entry
from outfall.serde import ModelSerializer
from tests.documents import SOURCES, modules
from tests.unit.support.golden import LARGE, STEPS, Past, stores
from tests.unit.support.golden_values import values
from tests.unit.support.journals import kinds

GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(directory.name for directory in GOLDEN.iterdir())


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


@pytest.fixture(params=["checkpoint", "sqlite", "kafka"])
def store(request: pytest.FixtureRequest, release: Path) -> RecoveryConfig:
    return stores(release)[request.param]


def test_what_was_counted_is_read(store: RecoveryConfig) -> None:
    assert [(s.epoch, s.batch, s.rows, s.skipped, s.buffered_rows) for s in history(store, "held")] == [
        (0, 0, 3, 0, 3),
        (0, 0, 0, 3, 0),
        (1, None, 0, 0, 0),
        (2, 1, 3, 0, 3),
    ]


def test_every_kind_of_entry_is_among_what_is_read(store: RecoveryConfig) -> None:
    union, _ = get_args(Entry)
    known = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(union)}
    assert {kind for step in STEPS for kind in kinds(store, step)} == known


def test_the_sink_that_had_committed_is_not_asked_again(store: RecoveryConfig) -> None:
    past = Past(store)
    assert past.share(1)
    assert past.published == {"a": [], "b": [1]}
    assert not past.share(2)
    assert past.published == {"a": [2], "b": [1, 2]}


def test_a_step_that_was_moved_says_where_to(store: RecoveryConfig) -> None:
    with pytest.raises(FencedError, match="sqlite:///elsewhere"):
        Past(store).run("moved", 1)


def test_a_step_whose_checkpoint_was_repaired_goes_on(store: RecoveryConfig) -> None:
    past = Past(store)
    assert past.run("repaired", 0)
    assert not past.run("repaired", 1)


def test_every_value_that_sinks_store_is_read(release: Path) -> None:
    written = json.loads((release / "values.json").read_text())
    found = {
        name: serializer.deserialize(written[name]["version"], base64.b64decode(written[name]["data"]))
        for name, (serializer, _) in values().items()
    }
    assert found == {name: value for name, (_, value) in values().items()}
    assert written.keys() == found.keys()


def test_no_serializer_and_no_stored_model_is_missing() -> None:
    kept = [serializer for serializer, _ in values().values()]
    sources = [file for _, file in modules() if SOURCES[-1] not in file.parents]
    texts = [file.read_text() for file in sources if file.name != "serde.py"]
    classes = {name for text in texts for name in re.findall(r"class (\w+)\(SimpleVersionedSerializer", text)}
    # Those of single requests are within what waits.
    assert {type(serializer).__name__ for serializer in kept} == (
        classes - {"HttpRecordSerializer", "AwsRecordSerializer"}
    ) | {"ModelSerializer"}
    models = {name for text in texts for name in re.findall(r"return ModelSerializer\((\w+)", text)}
    stored = {
        type(value).__name__ for serializer, value in values().values() if isinstance(serializer, ModelSerializer)
    }
    assert stored == models


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
    assert history(store, step)[-1].buffered_rows == 0
