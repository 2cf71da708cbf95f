"""A log that is copied to Kafka is there whole or not at all, wherever the copy dies and whatever answers it misses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outfall import trace_points
from outfall.errors import RecordError, TransientError
from outfall.kafka.recovery.log import KafkaLog
from outfall.recovery import LogEntry
from outfall.testing import crash_at
from tests.unit.support.kafka_partition import Faults, Topic, memory_log

ENTRIES = [LogEntry(3, b"three"), LogEntry(5, b"a long five"), LogEntry(6, b""), LogEntry(7, b"seven")]
PLAIN, FROM_KAFKA = (f"g{generation}-p-{generation:032x}.state" for generation in (3, 5))
STATES = {PLAIN: b"of the third", f"{FROM_KAFKA}.7-2": b"of the fifth"}


class Target:
    """Two topics that hold no log of this step yet."""

    def __init__(self) -> None:
        self.topic, self.states = Topic(), Topic()
        # Somebody else's, so that offsets do not begin at 0.
        memory_log(self.topic, self.states, step="other").write_state("p", b"x", generation=1)

    def log(self, fates: Sequence[str] = ()) -> KafkaLog:
        return memory_log(self.topic, self.states, chunk=4, faults=Faults(list(fates)))

    def compact(self) -> None:
        self.topic.compact()
        self.states.compact()

    def is_whole(self) -> bool:
        """Whether the copy is there; else nothing is."""
        found = self.log().read()
        assert found in ([], ENTRIES)
        return bool(found)

    def check(self) -> None:
        """It is whole, can be gone on from, and leaves nothing when all of it is cleaned up."""
        for _ in range(2):
            assert self.is_whole()
            assert {name: self.log().read_state(name) for name in STATES} == STATES
            self.compact()
        log = self.log()
        assert log.append(b"8", after=7) == 8
        log.clean_up(keep=[5, 8], states=[PLAIN], generation=8)
        self.compact()
        assert self.log().read() == [ENTRIES[1], LogEntry(8, b"8")]
        assert self.log().read_state(PLAIN) == STATES[PLAIN]
        with pytest.raises(RecordError, match="is not in"):
            self.log().read_state(f"{FROM_KAFKA}.7-2")
        log.clean_up(keep=[8], states=[], generation=9)
        self.compact()
        assert self.log().read() == [LogEntry(8, b"8")]
        kept = [*self.topic.kept.values(), *self.states.kept.values()]
        own = [record.key for record in kept if record.key.startswith("sink/") and record.value is not None]
        assert [key.split("/")[1] for key in own] == ["entry"]


def named_steps() -> list[str]:
    """The steps of a copy, each with which time it is."""
    seen: list[str] = []
    target = Target()
    remove = trace_points.listen(lambda step: seen.append(f"{step}#{sum(s.startswith(step + '#') for s in seen) + 1}"))
    try:
        target.log().restore(ENTRIES, STATES)
    finally:
        remove()
    return seen


def test_a_copy_that_dies_at_any_step_leaves_nothing_or_all_and_can_be_made_again() -> None:
    points = named_steps()
    assert len(points) == 3 * len(STATES) + len(ENTRIES) + 1
    for point in points:
        target = Target()
        with crash_at(point):
            target.log().restore(ENTRIES, STATES)
        assert target.is_whole() == (point == "log: copy written#1")
        target.log().restore(ENTRIES, STATES)
        target.check()


WRITES = 1 + 3 + 1 + 1 + 3 + 1 + sum(max(1, -(-len(entry.data) // 4)) for entry in ENTRIES) + 1


@pytest.mark.parametrize("arrives", ["before the next try", "after it"])
@pytest.mark.parametrize("fate", ["lost", "landed", "late"])
def test_a_copy_that_misses_an_answer_leaves_nothing_or_all(fate: str, arrives: str) -> None:
    for index in range(WRITES):
        target = Target()
        try:
            target.log(["well"] * index + [fate]).restore(ENTRIES, STATES)
        except TransientError:
            assert not target.is_whole()
        else:
            assert target.is_whole()
            assert (fate, index) == ("landed", WRITES - 1), "only the last record is settled by reading back"
        if target.topic.late and arrives == "before the next try":
            target.topic.arrive()
        if target.states.late and arrives == "before the next try":
            target.states.arrive()
        target.log().restore(ENTRIES, STATES)
        for topic in (target.topic, target.states):
            if topic.late:
                topic.arrive()
        target.check()


def test_a_copy_does_not_count_in_a_log_that_was_begun() -> None:
    target = Target()
    target.log().append(b"1", after=0)
    with pytest.raises(RecordError, match="differs from the log that was copied"):
        target.log().restore(ENTRIES, STATES)
    assert target.log().read() == [LogEntry(1, b"1")]


def test_a_state_without_a_place_here_is_missing_whatever_its_name_says() -> None:
    for name in STATES:
        with pytest.raises(RecordError, match=r"is not in .*restore"):
            Target().log().read_state(name)
