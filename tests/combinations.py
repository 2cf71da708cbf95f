"""Every wrapper around every other one and around every sink: which go together, and that rows then arrive once.

`TABLE` says it for all. Those with sinks that need no server run in tests/unit, the others in tests/integration.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import pytest

from outfall.capabilities import Guarantee, SupportsBufferedRows, SupportsTarget
from outfall.capability_checks import capabilities_of, resolve
from outfall.errors import CapabilityError, ConfigurationError, OutfallError
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.values import rows_to_batch
from outfall.wrappers import BatchingSink, DeadLetteringSink, ExactlyOnceSink, FanOutSink
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.refusing import RefusingSink
from tests.unit.support.warehouse import Warehouse, rows_of

FAN_OUT, BATCHES, HELD, ONCE = "fan-out", "batches", "batches across epochs", "exactly-once"
DEAD_LETTERS, AS_DEAD_LETTERS = "dead letters", "as dead letters"

PARTS = 2

BEFORE_PREPARED = "task: after snapshot"
"""Where a driver dies, in an epoch each; what is at least once has rows twice then."""
AFTER_PREPARED = "after PREPARED"
AFTER_COMMIT = "after commit"
"""Not reached where there is nothing to commit; the epoch is then brought again after it is completed."""


class Place(ABC):
    """A target that outlives its drivers, and the sink that writes to it."""

    letters = False
    """Whether the rows are dead letters."""
    refuses = False
    """Whether its sink hands over rows whose `text` is "bad"."""

    @abstractmethod
    def sink(self) -> Any:
        """Make the sink, as each process does."""

    @abstractmethod
    def read(self) -> Iterable[Mapping[str, Any]]:
        """The rows that a reader finds."""


class InMemory(Place):
    """Beside the target: the other sink of a fan-out, or its dead letters."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._warehouse = Warehouse()

    def sink(self) -> Any:
        return NamedStagingSink(self._warehouse, self._name)

    def read(self) -> Iterable[Mapping[str, Any]]:
        return rows_of(self._warehouse)


class Combination:
    """Wrappers around the sink of a place, the outermost first, and what stands beside it."""

    def __init__(self, wrappers: tuple[str, ...], place: Place) -> None:
        self.wrappers = wrappers
        self.place = place
        self.others = [InMemory(f"other {level}: {name}") for level, name in enumerate(wrappers)]
        self.refused_rows = InMemory("dead letters")
        self._refusing = Warehouse()
        place.letters = AS_DEAD_LETTERS in wrappers

    def sink(self) -> Any:
        """Make all of it, as each process does."""
        sink = self.place.sink()
        for level in reversed(range(len(self.wrappers))):
            sink = self._wrapped(self.wrappers[level], level, sink)
        return sink

    def _wrapped(self, wrapper: str, level: int, sink: Any) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            FAN_OUT: lambda: FanOutSink(out=sink, other=self.others[level].sink()),
            BATCHES: lambda: BatchingSink(sink, batch_size=2),
            HELD: lambda: BatchingSink(sink, batch_size=3, across_epochs=True),
            ONCE: lambda: ExactlyOnceSink(sink, offset="id", source_partition="source", parts=PARTS),
            DEAD_LETTERS: lambda: DeadLetteringSink(sink, self.refused_rows.sink()),
            AS_DEAD_LETTERS: lambda: DeadLetteringSink(RefusingSink(self._refusing), sink),
        }
        return makers[wrapper]()

    def epoch(self, epoch: int) -> list[dict[str, Any]]:
        """Five rows; a bad one among them where that goes to the dead letters."""
        sign = -1 if self.place.letters else 1
        ids = [sign * number for number in range(epoch * 5 + 1, epoch * 5 + 6)]
        bad = ids[2] if self.place.refuses and DEAD_LETTERS in self.wrappers and not self.place.letters else None
        return [
            {"id": number, "source": f"{number % PARTS}", "text": "bad" if number == bad else "ok"} for number in ids
        ]

    def check(self, brought: list[dict[str, Any]]) -> None:
        """Compare what was brought with what readers find, here and beside."""
        refused = Counter(row["id"] for row in brought if row["text"] == "bad")
        every = Counter(row["id"] for row in brought)
        assert Counter(ids_of(self.place.read())) == every - refused
        assert Counter(ids_of(self.refused_rows.read())) == refused
        for other, wrapper in zip(self.others, self.wrappers, strict=True):
            assert Counter(ids_of(other.read())) == (every if wrapper == FAN_OUT else Counter())


def ids_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    """The ids of rows, those in dead letters too."""
    for row in rows:
        yield json.loads(row["row"])["id"] if "row" in row else row["id"]


def outcome(combination: Combination) -> OutfallError | None:
    """Run epochs that crash and come again; return the error with which the combination is refused.

    Raises:
        AssertionError: a row is missing, or is there twice.
    """
    try:
        sink = combination.sink()
        if SupportsTarget in capabilities_of(sink):
            sink.check_schema(rows_to_batch(combination.epoch(0)).schema)
        recovery = MemoryRecoveryConfig()
        brought: list[dict[str, Any]] = []
        once = resolve(sink).guarantee() > Guarantee.AT_LEAST_ONCE
        points = [*([BEFORE_PREPARED] if once else []), AFTER_PREPARED, AFTER_COMMIT]
        for epoch, point in enumerate(points):
            rows = combination.epoch(epoch)
            brought += rows
            if combination.wrappers[:1] == (ONCE,):
                rows = rows + brought[:3]
            with crash_at(point) as steps:
                _run(combination, recovery, epoch, rows)
            assert point in steps or point == AFTER_COMMIT
            again = rows if resolve(sink).needs_same_rows() else rows[::-1]
            _run(combination, recovery, epoch, again)
        if SupportsBufferedRows in capabilities_of(sink):
            _driver(combination, recovery).drain()
    except OutfallError as refused:
        return refused
    combination.check(brought)
    return None


def _driver(combination: Combination, recovery: MemoryRecoveryConfig) -> LocalDriver:
    sink = combination.sink()
    options = EpochOptions(worker_count=PARTS) if resolve(sink).keeps_writer_state() else EpochOptions()
    return LocalDriver(sink, recovery, options=options)


def _run(combination: Combination, recovery: MemoryRecoveryConfig, epoch: int, rows: list[dict[str, Any]]) -> None:
    driver = _driver(combination, recovery)
    pairs = [(row["source"], dict(row)) for row in rows]
    tasks: list[Any] = [pairs[::2], pairs[1::2]]
    driver.run_epoch(epoch, tasks if resolve(driver.sink).fixed else [[row for _, row in task] for task in tasks])


REFUSED: Mapping[str, tuple[type[OutfallError], str]] = {
    "hands": (CapabilityError, "does not report rejected records"),
    "parts": (CapabilityError, "with parts cannot store the dead letters of a sink without parts"),
    "keys": (CapabilityError, "replace earlier ones"),
    "rows": (CapabilityError, "needs the same rows when an epoch is run again"),
    "column": (ConfigurationError, "requires the column 'id'"),
}
"""What the words of the table stand for; `once` is for rows that arrive once."""

TABLE = """\
sink                                          file    growing s3      requests keyed   epochs  parts   offsets
nothing                                       once    once    once    once     once    once    once    once
fan-out                                       once    once    once    once     once    once    once    once
batches                                       once    once    once    once     once    once    once    once
batches across epochs                         once    once    once    once     keys    once    rows    once
exactly-once                                  once    once    once    once     once    once    once    once
dead letters                                  hands   hands   hands   once     once    hands   hands   hands
as dead letters                               once    parts   once    once     once    once    parts   column
fan-out ( fan-out                             once    once    once    once     once    once    once    once
fan-out ( batches                             once    once    once    once     once    once    once    once
fan-out ( batches across epochs               once    once    once    once     keys    once    rows    once
fan-out ( exactly-once                        once    once    once    once     once    once    once    once
fan-out ( dead letters                        hands   hands   hands   once     once    hands   hands   hands
batches ( fan-out                             once    once    once    once     once    once    once    once
batches ( batches                             once    once    once    once     once    once    once    once
batches ( batches across epochs               once    once    once    once     keys    once    rows    once
batches ( exactly-once                        once    once    once    once     once    once    once    once
batches ( dead letters                        hands   hands   hands   once     once    hands   hands   hands
batches across epochs ( fan-out               once    once    once    once     keys    once    rows    once
batches across epochs ( batches               once    once    once    once     keys    once    rows    once
batches across epochs ( batches across epochs once    once    once    once     keys    once    rows    once
batches across epochs ( exactly-once          once    once    once    once     keys    once    rows    once
batches across epochs ( dead letters          hands   hands   hands   once     keys    hands   hands   hands
exactly-once ( fan-out                        once    once    once    once     once    once    once    once
exactly-once ( batches                        once    once    once    once     once    once    once    once
exactly-once ( batches across epochs          once    once    once    once     keys    once    rows    once
exactly-once ( exactly-once                   once    once    once    once     once    once    once    once
exactly-once ( dead letters                   hands   hands   hands   once     once    hands   hands   hands
dead letters ( fan-out                        hands   hands   hands   hands    hands   hands   hands   hands
dead letters ( batches                        hands   hands   hands   once     once    hands   hands   hands
dead letters ( batches across epochs          hands   hands   hands   hands    keys    hands   rows    hands
dead letters ( exactly-once                   once    once    once    once     once    once    once    once
dead letters ( dead letters                   hands   hands   hands   hands    hands   hands   hands   hands
as dead letters ( fan-out                     once    parts   once    once     once    once    parts   column
as dead letters ( batches                     once    parts   once    once     once    once    parts   column
as dead letters ( batches across epochs       once    parts   once    once     keys    once    rows    column
as dead letters ( exactly-once                parts   parts   parts   parts    parts   parts   parts   parts
as dead letters ( dead letters                hands   hands   hands   once     once    hands   hands   hands
"""
"""Wrappers, the outermost first, and sinks: whole files, growing files, S3, `REQUESTS`, `KEYED`; and PostgreSQL by
epochs, by parts with offsets, and by the source's own offsets."""
REQUESTS = ("http", "kinesis")
"""Sinks on the asynchronous base that add rows."""
KEYED = ("redis", "dynamodb", "opensearch")
"""Those whose rows replace each other by key."""


Row = tuple[tuple[str, ...], str, str]
"""Wrappers, the outermost first, the sink, and the word."""


def combinations(sinks: Iterable[str]) -> list[Row]:
    """What the table says of these sinks."""
    head, *lines = TABLE.splitlines()
    names = head.split()[1:]
    start = head.index(names[0])
    found = []
    for line in lines:
        wrappers = tuple(filter(None, (name.strip() for name in line[:start].removeprefix("nothing").split("("))))
        words = dict(zip(names, line[start:].split(), strict=True))
        words |= dict.fromkeys(REQUESTS, words["requests"]) | dict.fromkeys(KEYED, words["keyed"])
        found += [(wrappers, sink, words[sink]) for sink in sinks]
    return found


def parameters(sinks: Collection[str]) -> list[Any]:
    """One wrapper around each sink: by default around one of them, and where it is refused. Two take a minute."""
    found = []
    for number, row in enumerate(combinations(sinks)):
        line, sink = divmod(number, len(sinks))
        by_default = row[2] != "once" or line % len(sinks) == sink
        marks = [pytest.mark.long] if len(row[0]) > 1 else [] if by_default else [pytest.mark.thorough]
        found.append(pytest.param(*row, marks=marks))
    return found


def pairwise(rows: list[Row]) -> list[Row]:
    """Choose rows that have each pair of neighbours once, in a combination that goes together if there is one."""
    chosen: list[Row] = []
    seen: set[tuple[str, str]] = set()
    together, refused = [row for row in rows if row[2] == "once"], [row for row in rows if row[2] != "once"]
    for some, least in ((together, 2), (together, 1), (refused, 2), (refused, 1)):
        for row in some:
            chain = (*row[0], row[1])
            new = set(itertools.pairwise(("", *chain) if len(chain) == 1 else chain)) - seen
            if len(new) >= least:
                chosen.append(row)
                seen |= new
    return chosen


def check(wrappers: tuple[str, ...], place: Place, word: str) -> None:
    """Compare what the table says with what comes."""
    refused = outcome(Combination(wrappers, place))
    if word == "once":
        assert refused is None
    else:
        kind, text = REFUSED[word]
        assert isinstance(refused, kind)
        assert text in str(refused)
