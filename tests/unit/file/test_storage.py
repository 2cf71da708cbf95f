"""What sinks that store files or objects do alike: bounds, and names and records as they were always stored."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outfall.errors import TargetLostError
from outfall.file.stores.store import FileRecord
from outfall.s3.record import ObjectRecord
from outfall.storage.names import AttemptName, is_hidden
from outfall.storage.rolling import RollBounds

OURS = "0e3a9c5d71f2b846"


@pytest.mark.parametrize("step_id", ["", "my-step.1", f"a-{OURS}-g1-a1"])
def test_a_name_is_read_as_it_was_written(step_id: str) -> None:
    name = AttemptName(12, 3, 7, step_id, OURS, 45, 6, ".jsonl.gz")
    assert AttemptName.parse(f"a/b=c/{name}", with_step=bool(step_id)) == name


def test_names_are_those_of_earlier_releases() -> None:
    assert str(AttemptName(12, 3, 7, "", OURS, 45, 6, ".jsonl")) == (f"part-0000000012-00003-00007-{OURS}-g45-a6.jsonl")
    assert str(AttemptName(12, 3, 7, "sink", OURS, 45, 6, ".jsonl")) == (
        f"part-0000000012-00003-00007-sink-{OURS}-g45-a6.jsonl"
    )


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("a", False),
        ("a/b", False),
        ("_a=1/b", False),
        ("_a/b", True),
        ("a/.b", True),
        ("a/_SUCCESS", True),
        ("a/", True),
    ],
)
def test_what_readers_skip_is_hidden(path: str, hidden: bool) -> None:
    assert is_hidden(path) is hidden


def test_the_marker_of_a_prefix_is_stored_as_ever() -> None:
    record = ObjectRecord(incarnation=OURS, step='é"\x01', created="2026-01-02T03:04:05+00:00", token="t", epoch=4)
    assert (
        record.body()
        == (
            '{"incarnation":"0e3a9c5d71f2b846","step":"é\\"\\u0001","created":"2026-01-02T03:04:05+00:00",'
            '"conditional":true,"matching":false,"opened":true,"generation":0,"token":"t","epoch":4}'
        ).encode()
    )
    assert ObjectRecord.model_validate_json(record.body()) == record


def test_the_marker_of_a_directory_is_stored_as_ever() -> None:
    line = (
        f'{{"incarnation": "{OURS}", "step": "é", "host": "h", "created": "2026-01-02T03:04:05+00:00",'
        ' "generation": 3, "epoch": 4, "token": "t", "ready": true}'
    )
    assert FileRecord.parse(line, "x").line() == line
    with pytest.raises(TargetLostError, match="newer release"):
        FileRecord.parse(line.replace("ready", "readiness"), "x")


def test_a_marker_of_a_release_before_tokens_is_read() -> None:
    record = ObjectRecord.model_validate_json(f'{{"incarnation": "{OURS}", "step": "sink", "generation": 3}}')
    assert (record.record.token, record.record.epoch, record.opened) == (None, None, True)


@pytest.mark.parametrize(
    ("bounds", "due"),
    [
        (RollBounds(), False),
        (RollBounds(size=100), True),
        (RollBounds(size=101), False),
        (RollBounds(largest=100), True),
        (RollBounds(rows=10), True),
        (RollBounds(rows=11), False),
        (RollBounds(interval=timedelta(seconds=5), clock=lambda: 15.0), True),
        (RollBounds(interval=timedelta(seconds=5), clock=lambda: 14.9), False),
    ],
)
def test_a_file_is_closed_at_the_first_bound_that_it_reaches(bounds: RollBounds, due: bool) -> None:
    assert bounds.due(100, since=10.0, rows=10) is due
    assert not bounds.due(0, since=10.0)


def test_what_the_store_takes_is_no_bound_that_was_asked_for() -> None:
    assert not RollBounds(largest=1).bounded
    assert RollBounds(rows=1).bounded


def test_a_file_has_room_up_to_its_bound_of_rows() -> None:
    assert RollBounds().room(10) is None
    assert [RollBounds(rows=5).room(rows) for rows in (0, 4, 5, 6)] == [5, 1, 0, 0]
    assert RollBounds(rows=5).fits(5)
    assert not RollBounds(rows=5).fits(6)
