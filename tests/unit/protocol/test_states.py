"""The state of a part: what is one, where it lies, and what happens when it cannot be stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import SupportsStateSerializer
from outfall.errors import CapabilityError, RecordError, SerializationError
from outfall.serde import PickleSerializer, SimpleVersionedSerializer
from outfall.sinks import FixedPartitionedSink, StatefulSinkPartition
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import entries, entry_files
from tests.unit.support.setups import Staging


class Given(StatefulSinkPartition[Any, Any]):
    """Its state is the last value written."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def write_batch(self, values: list[Any]) -> None:
        self._state = values[-1]

    def snapshot(self) -> Any:
        return self._state


class StateSink(FixedPartitionedSink[Any, Any]):
    """Remembers which states its parts were built with."""

    def __init__(self, parts: tuple[str, ...] = ("p",)) -> None:
        self.parts = parts
        self.resumed: list[Any] = []

    def list_parts(self) -> list[str]:
        return list(self.parts)

    def part_fn(self, item_key: str) -> int:
        return int(item_key)

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Given:
        self.resumed.append(resume_state)
        return Given(resume_state)


class SerializedSink(StateSink, SupportsStateSerializer[Any]):
    def __init__(self, serializer: SimpleVersionedSerializer[Any]) -> None:
        super().__init__()
        self._serializer = serializer

    def state_serializer(self) -> SimpleVersionedSerializer[Any]:
        return self._serializer


class Versioned(SimpleVersionedSerializer[str]):
    """Text in version 1, reversed text in version 2."""

    def __init__(self, version: int) -> None:
        self._version = version

    @property
    def version(self) -> int:
        return self._version

    def serialize(self, value: str) -> bytes:
        return (value if self._version == 1 else value[::-1]).encode()

    def deserialize(self, version: int, data: bytes) -> str:
        self.check_version(version)
        return data.decode() if version == 1 else data.decode()[::-1]


def write(sink: StateSink, recovery: str | Path, epoch: int, value: Any) -> None:
    LocalDriver(sink, str(recovery)).run_epoch(epoch, [[("0", value)]])


def resumed(recovery: str | Path, epoch: int = 1) -> Any:
    """What a part is built with in the next epoch."""
    sink = StateSink()
    write(sink, recovery, epoch, "next")
    return sink.resumed[0]


def state_files(recovery: Path) -> list[Path]:
    return list(recovery.glob("outfall/sink/states/*"))


def test_a_part_without_a_state_is_built_with_none(tmp_path: Path) -> None:
    sink = StateSink()
    write(sink, tmp_path, 0, 1)
    assert sink.resumed == [None]


@pytest.mark.parametrize("state", [0, "", {}, [], False, 0.0, -1, "zwölf\n\x00", {"a": [1, {"b": None}]}, 2**70])
def test_empty_and_other_states_come_back(tmp_path: Path, state: Any) -> None:
    write(StateSink(), tmp_path, 0, state)
    found = resumed(tmp_path)
    assert found == state
    assert type(found) is type(state)


def test_a_state_is_that_of_the_last_recorded_epoch(tmp_path: Path) -> None:
    for epoch in range(4):
        write(StateSink(), tmp_path, epoch, epoch * 10)
    with crash_at("before PREPARED"):
        write(StateSink(), tmp_path, 4, "lost")
    assert resumed(tmp_path, 4) == 30


def test_the_state_of_the_last_epoch_of_a_finite_stream_is_stored_like_any_other(tmp_path: Path) -> None:
    write(StateSink(), tmp_path, 0, "end")
    assert json.loads(entries(str(tmp_path))[1]["states"]["p"]["text"]) == "end"


def test_no_state_at_snapshot_is_refused_with_the_parts_name(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match=r"part 'p'.*Given\.snapshot\(\) returned None"):
        write(StateSink(), tmp_path, 0, None)


@pytest.mark.parametrize(
    "state",
    [(1, 2), {1: 2}, {"a": (1,)}, pytest.param(object(), id="object"), float("nan"), b"bytes", {1}, print, "\ud800"],
    ids=repr,
)
def test_a_state_that_json_changes_fails_at_the_first_snapshot_with_the_parts_name(tmp_path: Path, state: Any) -> None:
    with pytest.raises(SerializationError, match="the state of part 'p' cannot be serialized") as caught:
        write(StateSink(), tmp_path, 0, state)
    assert "PickleSerializer" in str(caught.value)
    assert len(entries(str(tmp_path))) == 1


def test_pickle_stores_what_json_cannot_when_named(tmp_path: Path) -> None:
    sink = SerializedSink(PickleSerializer())
    write(sink, tmp_path, 0, (1, {2: b"\xff"}))
    write(sink, tmp_path, 1, "next")
    assert sink.resumed == [None, (1, {2: b"\xff"})]


def test_pickle_names_the_part_that_it_cannot_store(tmp_path: Path) -> None:
    with pytest.raises(SerializationError, match=r"part 'p'.*cannot be pickled"):
        write(SerializedSink(PickleSerializer()), tmp_path, 0, lambda: None)


def test_a_newer_serializer_reads_an_older_state(tmp_path: Path) -> None:
    write(SerializedSink(Versioned(1)), tmp_path, 0, "abc")
    newer = SerializedSink(Versioned(2))
    write(newer, tmp_path, 1, "xyz")
    write(newer, tmp_path, 2, "next")
    assert newer.resumed == ["abc", "xyz"]


def test_an_unknown_state_version_is_an_error_that_names_both(tmp_path: Path) -> None:
    write(SerializedSink(Versioned(3)), tmp_path, 0, "abc")
    with pytest.raises(SerializationError, match="reads versions 1 to 2 but found version 3"):
        write(SerializedSink(Versioned(2)), tmp_path, 1, "next")


def test_a_state_of_10_mb_lies_beside_the_log(tmp_path: Path) -> None:
    state = "x" * 10_000_000
    write(StateSink(), tmp_path, 0, state)
    assert max(file.stat().st_size for file in entry_files(tmp_path)) < 10_000
    assert [file.stat().st_size for file in state_files(tmp_path)] == [10_000_002]
    assert resumed(tmp_path) == state


@pytest.mark.parametrize(("length", "beside"), [(64 * 1024 - 2, 0), (64 * 1024 - 1, 1)])
def test_states_above_64_kib_lie_beside_the_log(tmp_path: Path, length: int, beside: int) -> None:
    write(StateSink(), tmp_path, 0, "x" * length)
    assert len(state_files(tmp_path)) == beside
    assert resumed(tmp_path) == "x" * length


def test_a_large_state_of_a_part_without_rows_is_kept(tmp_path: Path) -> None:
    sink = StateSink(("p", "q"))
    large = "x" * 100_000
    LocalDriver(sink, str(tmp_path)).run_epoch(0, [[("0", large), ("1", 1)]])
    for epoch in range(1, 4):
        LocalDriver(sink, str(tmp_path)).run_epoch(epoch, [[("1", epoch)]])
    sink.resumed.clear()
    LocalDriver(sink, str(tmp_path)).run_epoch(4, [[("0", 1)]])
    assert sink.resumed == [large]


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _change(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"x", b"y", 1))


@pytest.mark.parametrize("damage", [_truncate, _change, Path.unlink])
def test_a_damaged_large_state_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write(StateSink(), tmp_path, 0, "x" * 100_000)
    (file,) = state_files(tmp_path)
    file.chmod(0o600)
    damage(file)
    with pytest.raises(RecordError, match="restore the recovery data from a copy"):
        resumed(tmp_path)


def test_large_states_that_no_longer_count_are_removed(tmp_path: Path) -> None:
    for epoch in range(5):
        with crash_at("before PREPARED"):
            write(StateSink(), tmp_path, epoch, "x" * 100_000)
        write(StateSink(), tmp_path, epoch, "y" * 100_000)
    assert len(state_files(tmp_path)) <= 2
    assert resumed(tmp_path, 5) == "y" * 100_000


def test_a_task_gets_the_states_of_its_own_parts_only() -> None:
    sink = StateSink(("p", "q", "r"))
    recovery = Staging().recovery
    LocalDriver(sink, recovery).run_epoch(0, [[("0", "P"), ("1", "Q"), ("2", "R")]])
    sink.resumed.clear()
    LocalDriver(sink, recovery).run_epoch(1, [[("1", "Q2")]])
    assert sink.resumed == ["Q"]
