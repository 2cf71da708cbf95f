"""A log in Kafka that is erased is empty for every reader, wherever the erasure dies and whatever is compacted."""

from __future__ import annotations

import pytest

from outfall import trace_points
from outfall.errors import RecordError
from outfall.recovery import LogEntry
from outfall.testing import crash_at
from tests.unit.support.kafka_partition import Topic, memory_log

COPIED = [LogEntry(3, b"three"), LogEntry(4, b"a long four")]
APPENDED = [LogEntry(5, b"five, in chunks"), LogEntry(6, b"six")]


class Erased:
    """A log that was copied and gone on with, beside strays, what a copy that failed left, and another log."""

    def __init__(self) -> None:
        self.topic, self.states = Topic(), Topic()
        other = self.log(step="other")
        other.append(b"stays", after=0)
        self.other_state = other.write_state("p", b"stays", generation=1)
        with crash_at("log: entry restored"):
            self.log().restore(COPIED, {})
        log = self.log()
        log.restore(COPIED, {"g1-p-00000000000000000000000000000001.state": b"of the first"})
        log.write_state("p", b"of the second", generation=2)
        for entry in APPENDED:
            log.append(entry.data, after=entry.number - 1)
        for stray in ("entry/00000000000000000005/late/0", "copy/00000000000000000004/late"):
            self.topic.land((f"sink/{stray}", b"late"))

    def log(self, step: str = "sink"):  # type: ignore[no-untyped-def]
        return memory_log(self.topic, self.states, step=step, chunk=6)

    def compact(self) -> None:
        self.topic.compact()
        self.states.compact()

    def check_empty(self) -> None:
        self.compact()
        kept = [*self.topic.kept.values(), *self.states.kept.values()]
        assert not [record.key for record in kept if record.key.startswith("sink/") and record.value is not None]
        other = self.log(step="other")
        assert [entry.data for entry in other.read()] == [b"stays"]
        assert other.read_state(self.other_state) == b"stays"
        assert self.log().append(b"first", after=0) == 1
        assert self.log().read() == [LogEntry(1, b"first")]


def named_steps() -> list[str]:
    """The steps of an erasure, each with which time it is."""
    seen: list[str] = []
    log = Erased().log()
    remove = trace_points.listen(lambda step: seen.append(f"{step}#{sum(s.startswith(step + '#') for s in seen) + 1}"))
    try:
        log.erase()
    finally:
        remove()
    return seen


def test_an_erasure_that_dies_at_any_step_leaves_the_newest_or_nothing_and_can_be_repeated() -> None:
    points = named_steps()
    assert [point.split("#")[0].removeprefix("log: ") for point in points] == [
        "strays erased", "copy erased", *["entry erased"] * 4, "chunks erased", "state erased",
    ]  # fmt: skip
    whole = [*COPIED, *APPENDED]
    for point in points:
        for same in (False, True):
            setup = Erased()
            log = setup.log()
            with crash_at(point):
                log.erase()
            setup.compact()
            left = setup.log().read()
            assert left == whole[len(whole) - len(left) :], point
            (log if same else setup.log()).erase()
            setup.check_empty()


def test_readers_of_before_are_told_and_do_not_write() -> None:
    setup = Erased()
    log, appending = setup.log(), setup.log()
    for reader in (log, appending):
        assert len(reader.read()) == 4
    setup.log().erase()
    setup.log().append(b"of the new log", after=0)
    with pytest.raises(RecordError, match=r"was erased.*start the query again"):
        log.read()
    with pytest.raises(RecordError, match="was erased"):
        appending.append(b"seven", after=6)
    assert setup.log().read() == [LogEntry(1, b"of the new log")]
