"""Releases may be rolled back: what this one writes is read by those before, and it reads what later ones add."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import SerializationError
from outfall.recovery import LogEntry, RecoveryConfig, history, recovery_config
from outfall.recovery.entries import StoredModel, decode_entry
from outfall.serde import ModelSerializer
from outfall.testing import FakeClock, MemoryRecoveryConfig
from tests.unit.support.former_entries import FORMER
from tests.unit.support.golden import STEPS, Past
from tests.unit.support.golden_values import values
from tests.unit.support.journals import entry_files

FORMER_VALUES = Path(__file__).with_name("former_values.json")
STRICT = ("a task's data files", "an epoch's data files")
"""Values in which the first rules rejected unknown fields."""


@pytest.fixture(scope="module")
def written() -> RecoveryConfig:
    recovery = MemoryRecoveryConfig()
    Past(recovery, FakeClock()).write()
    return recovery


def test_every_entry_is_read_by_the_first_rules(written: RecoveryConfig) -> None:
    found = [raw for step in STEPS for raw in written.open(step).read()]
    read = [FORMER.validate_json(raw.data) for raw in found]
    assert len({type(entry) for entry in read}) == 9, "all kinds"


def test_every_value_is_read_by_the_first_rules() -> None:
    first = json.loads(FORMER_VALUES.read_text())
    for name, (serializer, value) in values().items():
        assert serializer.version == first[name]["version"]
        if isinstance(serializer, ModelSerializer):
            then, now = json.loads(base64.b64decode(first[name]["data"])), json.loads(serializer.serialize(value))
            assert then.items() <= now.items()
            assert then == now or name not in STRICT


def later(value: Any) -> Any:
    """What a later release may store instead: one more field in each model."""
    if isinstance(value, StoredModel):
        aliases = {name: field.alias or name for name, field in type(value).model_fields.items()}
        return {aliases[name]: later(item) for name, item in value} | {"later": {"release": 1}}
    if isinstance(value, dict):
        return {name: later(item) for name, item in value.items()}
    if isinstance(value, list):
        return [later(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def test_fields_that_a_later_release_has_added_are_ignored(written: RecoveryConfig) -> None:
    for step in STEPS:
        for raw in written.open(step).read():
            entry = decode_entry(raw, step)
            assert decode_entry(LogEntry(raw.number, json.dumps(later(entry)).encode()), step) == entry


def test_a_query_goes_on_over_entries_of_a_later_release(tmp_path: Path) -> None:
    past = Past(recovery_config(str(tmp_path)))
    past.run("prepared", 0)
    for file in entry_files(tmp_path, "prepared"):
        file.write_text(json.dumps(later(decode_entry(LogEntry(1, file.read_bytes()), "prepared"))))
    assert not past.run("prepared", 1)
    assert [summary.epoch for summary in history(past.recovery, "prepared")] == [0, 1]


@pytest.mark.parametrize("name", [name for name, (kept, _) in values().items() if isinstance(kept, ModelSerializer)])
def test_a_value_says_by_its_version_whether_a_new_field_may_be_ignored(name: str) -> None:
    serializer, value = values()[name]
    data = json.dumps({**json.loads(serializer.serialize(value)), "later": {"release": 1}}).encode()
    assert serializer.deserialize(serializer.version, data) == value
    with pytest.raises(SerializationError, match=r"found version 2.*run the release that wrote the value"):
        serializer.deserialize(serializer.version + 1, data)
