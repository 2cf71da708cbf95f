"""The writer of one output per partition: when outputs end, what they buffer together, and what a failure leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import TransientError
from outfall.storage import writer as writer_module
from outfall.storage.writer import Output, OutputWriter


class Journal:
    """What happens in order, and an error at one of it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails: set[str] = set()

    def note(self, event: str) -> None:
        if event in self.fails:
            raise OSError(f"no {event}")
        self.events.append(event)

    def of(self, *kinds: str) -> list[str]:
        return [event for event in self.events if event.split()[0] in kinds]


class Letters(Output[str]):
    """An output whose rows are letters; each is kept until it is spilled, then held."""

    def __init__(self, name: str, journal: Journal, largest: int, refused: str) -> None:
        self.name = name
        self.written = ""
        self.pending = ""
        self._journal = journal
        self._largest = largest
        self._refused = refused

    @property
    def kept(self) -> int:
        return len(self.pending)

    @property
    def held(self) -> int:
        return len(self.written)

    @property
    def full(self) -> bool:
        return self.kept + self.held >= self._largest

    def takes(self, rows: pa.RecordBatch) -> bool:
        return self._refused not in letters(rows)

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        self._journal.note(f"write {self.name}")
        self.pending += letters(batch)

    def spill(self) -> None:
        self._journal.note(f"spill {self.name}")
        self.written, self.pending = self.written + self.pending, ""

    def end(self) -> str:
        self._journal.note(f"end {self.name}")
        return f"{self.name}={self.written}{self.pending}"

    def close(self) -> None:
        # Noted even if it fails, as a file descriptor is gone after a close that failed.
        self._journal.events.append(f"closed {self.name}")
        self._journal.note(f"close {self.name}")


class LettersWriter(OutputWriter[str, str, str]):
    """Writes each letter to the output of its partition."""

    def __init__(self, *, largest: int = 1 << 30, refused: str = "-", **bounds: Any) -> None:
        super().__init__(self._by_key, **bounds)
        self.journal = Journal()
        self._letters = (largest, refused)
        self._numbers: Counter[str] = Counter()

    @property
    def open(self) -> list[str]:
        return [output.name for output in self._open.values() if isinstance(output, Letters)]

    def write(self, **rows: str) -> None:
        """Write letters to partitions, as one batch."""
        pairs = [(key, letter) for key, some in rows.items() for letter in some]
        self.write_record_batch(pa.record_batch({"key": [k for k, _ in pairs], "letter": [each for _, each in pairs]}))

    def _by_key(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        self.journal.note("split")
        keys = batch.column("key").to_pylist()
        for key in dict.fromkeys(keys):
            yield key, batch.filter(pa.array([each == key for each in keys])).select(["letter"])

    def _begin(self, key: str, rows: pa.RecordBatch) -> Letters:
        self._numbers[key] += 1
        name = f"{key}{self._numbers[key]}"
        self.journal.note(f"begin {name}")
        return Letters(name, self.journal, *self._letters)

    def _hand_over(self, ended: list[str]) -> list[str]:
        self.journal.note("sync")
        return ended

    def _release(self, *, failed: bool) -> None:
        self.journal.note("removed" if failed else "released")


def letters(batch: pa.RecordBatch) -> str:
    return "".join(batch.column("letter").to_pylist())


def test_each_partition_has_one_output_and_all_are_durable_before_they_are_handed_over() -> None:
    part = LettersWriter()
    part.write(x="ab", y="c")
    part.write(y="d", x="e")
    assert part.prepare_commit() == ["y1=cd", "x1=abe"]
    assert part.journal.of("begin", "end", "sync") == ["begin x1", "begin y1", "end y1", "end x1", "sync"]


def test_an_attempt_without_rows_begins_nothing() -> None:
    part = LettersWriter()
    part.write()
    part.write_batch([])
    assert part.prepare_commit() == []
    assert part.journal.events == ["sync"]


def test_an_output_that_is_full_ends_at_once_and_the_next_begins_with_the_next_rows() -> None:
    part = LettersWriter(largest=3)
    part.write(x="ab", y="c")
    assert part.open == ["x1", "y1"]
    part.write(x="d")
    assert part.open == ["y1"]
    part.write(x="e")
    assert part.prepare_commit() == ["x1=abd", "y1=c", "x2=e"]


def test_an_output_that_takes_no_more_rows_ends_before_they_are_written() -> None:
    part = LettersWriter(refused="!")
    for some in ("a", "b!", "c"):
        part.write(x=some)
    assert part.journal.of("begin", "end") == ["begin x1", "end x1", "begin x2"]
    assert part.prepare_commit() == ["x1=a", "x2=b!c"]


# --- bounds


def test_the_least_recently_written_output_ends_before_another_one_begins() -> None:
    part = LettersWriter(most_open=2)
    for some in ({"x": "a"}, {"y": "b"}, {"x": "c"}, {"z": "d"}):
        part.write(**some)
    assert part.open == ["x1", "z1"]
    assert part.journal.of("begin", "end") == ["begin x1", "begin y1", "end y1", "begin z1"]
    part.write(y="e")
    assert part.prepare_commit() == ["y1=b", "x1=ac", "z1=d", "y2=e"]


def test_rows_that_formats_keep_are_written_largest_first_until_they_fit() -> None:
    part = LettersWriter(most_kept=4)
    part.write(x="ab", y="c", z="d")
    assert part.journal.of("spill") == []
    part.write(y="ef")
    assert part.journal.of("spill", "end") == ["spill y1"]
    assert part.prepare_commit() == ["x1=ab", "z1=d", "y1=cef"]


def test_outputs_that_hold_too_much_end_largest_first_but_not_the_last() -> None:
    part = LettersWriter(most_kept=0, most_held=4)
    part.write(x="ab", y="c", z="d")
    assert part.journal.of("end") == []
    part.write(y="ef")
    assert part.journal.of("end") == ["end y1"]
    part.write(x="ghijk", z="l")
    assert part.journal.of("end") == ["end y1", "end x1"]
    part.write(z="mnopq")
    assert part.open == ["z1"]


def test_held_memory_is_bounded_within_a_batch_of_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_LOOK_AFTER", 4)
    monkeypatch.setattr(Letters, "held", 1)
    part = LettersWriter(most_held=6)
    most = []
    monkeypatch.setattr(Letters, "write_record_batch", lambda *_: most.append(len(part.open)))
    part.write(**{f"p{number}-": "a" for number in range(40)})
    assert max(most) == 6 + 4
    assert len(part.open) == 6


# --- failures


def several(part: LettersWriter) -> None:
    """Write so that everything happens that can: one output ended early, three left open, one of them spilled."""
    part.write(w="abcdef", x="gh")
    part.write(y="i", z="j")
    part.prepare_commit()


FAILURES = ["split", "begin y1", "write z1", "spill x1", "end w1", "end y1", "sync"]


@pytest.mark.parametrize("failing", FAILURES)
def test_an_attempt_that_failed_writes_nothing_more_and_leaves_nothing_open(failing: str) -> None:
    part = LettersWriter(largest=6, most_kept=3)
    part.journal.fails = {failing}
    with pytest.raises(OSError, match=f"no {failing}"):
        several(part)
    part.journal.fails.clear()
    calls: list[Callable[[], object]] = [lambda: part.write(x="k"), part.prepare_commit]
    for call in calls:
        with pytest.raises(TransientError, match="earlier write or fsync of it failed"):
            call()
    before = list(part.journal.events)
    part.close()
    part.close()
    begun, ended = ({event.split()[1] for event in part.journal.of(kind)} for kind in ("begin", "end"))
    assert sorted(part.journal.of("close")) == sorted(f"close {name}" for name in begun - ended)
    assert part.journal.events[len(before) :][-1] == "removed"
    assert part.journal.of("removed", "released") == ["removed"]


def test_an_output_that_cannot_be_closed_leaves_no_other_open() -> None:
    part = LettersWriter()
    part.write(x="a", y="b", z="c")
    part.journal.fails = {"close y1"}
    with pytest.raises(OSError, match="no close y1"):
        part.close()
    assert part.journal.of("closed", "removed") == ["closed x1", "closed y1", "closed z1", "removed"]
    part.close()
    assert part.journal.of("removed") == ["removed"]


def test_what_cannot_be_removed_is_left_to_the_clean_up() -> None:
    part = LettersWriter()
    part.journal.fails = {"removed"}
    with pytest.raises(OSError, match="no removed"):
        part.close()
    part.close()


def test_what_is_handed_over_stays_when_the_attempt_is_closed() -> None:
    part = LettersWriter(largest=6, most_kept=3)
    several(part)
    part.close()
    part.close()
    assert part.journal.of("close", "removed", "released") == ["released"]
    with pytest.raises(TransientError, match="is closed"):
        part.write(x="a")


def test_an_attempt_that_is_closed_before_it_is_handed_over_is_removed() -> None:
    part = LettersWriter()
    part.write(x="a")
    part.close()
    assert part.journal.of("close", "removed", "released") == ["close x1", "removed"]
