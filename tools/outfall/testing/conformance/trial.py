"""A trial of a sink: a target, its log, its source, and the expected rows after any fault."""

from __future__ import annotations

import copy
import gc
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outfall.capabilities import Guarantee, SaveMode, SupportsBufferedRows, SupportsCommitter
from outfall.capability_checks import ResolvedSink, resolve
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.recovery.log import RecoveryConfig
from outfall.testing.conformance.driver import RemoteTasks, TaskRows
from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.rows import Content, Numbers, Rows, dealt, frozen, some
from outfall.testing.conformance.spying import SpiedSink, delegate_of
from outfall.testing.crash_points import crash_at
from outfall.testing.memory_log import MemoryRecoveryConfig

ROWS = 6
TASKS = 3
_OTHERS = 1000
"""More rows than one query has in a trial."""
PATIENCE = 3
"""Allowed consecutive failures of an epoch with new drivers; a failed seal is retried."""


Wrapper = Callable[[Any], Any]


def unwrapped(sink: Any) -> Any:
    """Return the sink itself."""
    return sink


class Trial:
    """A target that survives its drivers, and a source that replays an epoch until it is completed."""

    def __init__(
        self,
        harness: SinkHarness,
        directory: Path,
        target: Any,
        recovery: str | RecoveryConfig,
        wrapper: Wrapper = unwrapped,
    ) -> None:
        """Use a wrapper around the sink. Raises `OutfallError` if it rejects the sink."""
        self.harness = harness
        self.directory = directory
        self.target = target
        self.recovery = recovery
        self._wrapper = wrapper
        bare = harness.make_sink(target)
        # A wrapper must keep the guarantee of its sink.
        self.claim = claim_of(harness, resolve(bare))
        self.resolved = sink = resolve(wrapper(bare))
        self.fixed = sink.fixed
        self.repeatable = (
            self.claim < Guarantee.EXACTLY_ONCE if harness.repeatable_source is None else harness.repeatable_source
        )
        # A fan-out may include sinks that write in place. Its author excludes that check.
        early = "nothing_visible_before_commit" in harness.not_claimed
        self.publishes = SupportsCommitter in sink.capabilities and not early
        self.drains = SupportsBufferedRows in sink.capabilities
        self.rows = Rows(harness)
        self.contents: dict[int, list[Numbers]] = {}
        self.counted: dict[int, list[Numbers]] = {}
        """Epoch → allowed contents; the target must contain one of them."""
        self._epochs: dict[int, int] = {}
        self._first_number = 0
        self._drained = -1
        self.save_mode: SaveMode | None = None
        """The save mode of the sinks of later drivers; `None` for the sinks as the test creates them."""
        self._change_parts: Callable[[list[str]], list[str]] | None = None

    @classmethod
    def create(
        cls,
        harness: SinkHarness,
        directory: Path,
        *,
        durable_log: bool = False,
        wrapper: Wrapper = unwrapped,
    ) -> Trial:
        """Create an empty target in a new directory and an empty log, in memory or next to the target."""
        directory /= uuid.uuid4().hex
        place = directory / "target"
        place.mkdir(parents=True)
        target = harness.new_target(place)
        own = str(directory / "recovery") if durable_log else MemoryRecoveryConfig()
        return cls(harness, directory, target, harness.make_recovery(directory / "recovery") or own, wrapper)

    def sibling(self) -> Trial:
        """Create another query with its own recovery data and rows on the same target."""
        other = Trial.create(self.harness, self.directory)
        other.target, other.rows, other._first_number = self.target, self.rows, self._first_number + _OTHERS
        return other

    def with_copied_log(self) -> Trial:
        """Copy the log, which must be durable, and return the same query on the copy.

        The two share the target and the rows. Each knows only the epochs that its own drivers completed.
        """
        place = shutil.copytree(self.directory / "recovery", self.directory / uuid.uuid4().hex)
        other = copy.copy(self)
        other.recovery = self.harness.make_recovery(place) or str(place)
        other.counted = dict(self.counted)
        return other

    # --- drivers

    def sink(self) -> Any:
        """Create the sink again, as each process does, with a proxy."""
        sink = self.harness.make_sink(self.target)
        if self.save_mode is not None:
            sink = resolve(sink).in_save_mode(self.save_mode)
        if self._change_parts is not None:
            _list_parts_changed(sink, self._change_parts)
        return SpiedSink(self._wrapper(sink))

    @contextmanager
    def listing(self, change: Callable[[list[str]], list[str]]) -> Iterator[None]:
        """Change `list_parts` of all sinks that are created in the block."""
        self._change_parts = change
        try:
            yield
        finally:
            self._change_parts = None

    def driver(self, **options: Any) -> RemoteTasks:
        """Start a new driver."""
        return RemoteTasks(self.sink(), self.recovery, **({"options": self.harness.options()} | options))

    # --- source

    @property
    def epoch(self) -> int:
        """The first incomplete epoch."""
        return max(self.counted, default=-1) + 1

    def bring(self, epoch: int, *, rows: int = ROWS, tasks: int = TASKS) -> Content:
        """Return the rows of an epoch. A replay has other tasks and another order.

        A replay has the same rows if the guarantee requires that, else other rows.
        """
        again = epoch in self.contents
        if again and self.repeatable:
            numbers = sorted(self.contents[epoch][0], reverse=True)
        else:
            numbers = self.new_numbers(rows)
            if again:
                numbers.reverse()
        return self.bring_numbers(epoch, dealt(numbers, tasks, first_empty=again))

    def bring_numbers(self, epoch: int, tasks: Sequence[Sequence[int]]) -> Content:
        """Return the given rows."""
        known = self.contents.setdefault(epoch, [])
        numbers = Counter(number for task in tasks for number in task)
        content = Content(epoch, tuple(map(tuple, tasks)), new=numbers not in known)
        if content.new:
            known.append(numbers)
        self._epochs |= dict.fromkeys(content.numbers, epoch)
        for number in content.numbers:
            # Registered now, because another process may create the row.
            self.rows.make(number)
        return content

    def new_numbers(self, count: int, accept: Callable[[int], bool] = lambda number: True) -> list[int]:
        """Return unused row numbers."""
        chosen: list[int] = []
        number = max(self._epochs, default=self._first_number - 1) + 1
        while len(chosen) < count:
            if accept(number):
                chosen.append(number)
            number += 1
        return chosen

    def values(self, content: Content) -> list[list[Any]]:
        """Return the rows of each task in the form for this sink."""
        return [[self._value(number) for number in task] for task in content.tasks]

    def _value(self, number: int) -> Any:
        row = self.rows.make(number)
        return (self.harness.key(number), row) if self.fixed else row

    def replacing(self, rows: Sequence[tuple[int, int]]) -> list[Any]:
        """Return rows by number and version, in the form for this sink. See `SinkHarness.replacing_row`."""
        made = [(self.harness.key(number), self.harness.replacing_row(number, version)) for number, version in rows]
        return made if self.fixed else [row for _, row in made]

    # --- epochs

    def run(self, driver: RemoteTasks, content: Content) -> EpochResult:
        """Run an epoch, and record its expected rows."""
        result = driver.run_epoch(content.epoch, self.values(content))
        self.note(result, content)
        return result

    def note(self, result: EpochResult, content: Content) -> None:
        """Record that a driver completed an epoch."""
        if result.skipped:
            earlier = [numbers for numbers in self.contents[content.epoch] if numbers != content.numbers]
            # Without other rows, a driver that came later has completed the epoch with the same ones.
            if not (content.new and earlier):
                earlier.append(content.numbers)
            self.counted.setdefault(content.epoch, earlier)
        else:
            self.counted[content.epoch] = [content.numbers]

    def run_epochs(self, count: int, driver: RemoteTasks | None = None) -> RemoteTasks:
        """Run the next epochs without faults."""
        driver = driver or self.driver()
        for _ in range(count):
            self.run(driver, self.bring(self.epoch))
        return driver

    def run_until(self, spec: str, content: Content, driver: RemoteTasks | None = None) -> list[str]:
        """Run an epoch, and crash at a step. Return the reached steps."""
        with crash_at(spec) as seen:
            self.run(driver or self.driver(), content)
        # A dead process holds nothing. Without this, a connection of sqlite3, which refers to itself, keeps its lock.
        gc.collect(1)
        return seen

    def begin(self, driver: RemoteTasks, content: Content, values: Sequence[Sequence[Any]] | None = None) -> Begun:
        """Begin an epoch without running tasks. `values` are the rows, unless they are those of `content`."""
        tasks = driver.routed(self.values(content) if values is None else values)
        driver.expect_tasks(len(tasks))
        coordinator = driver.coordinator()
        return Begun(self, driver, coordinator, coordinator.begin(content.epoch), content, tasks)

    def complete(self, epoch: int) -> None:
        """Run an epoch with new drivers until it is completed. Raises `ConformanceError` if it cannot be completed."""
        for attempt in range(PATIENCE):
            try:
                self.run(self.driver(), self.bring(epoch))
            except ConformanceError:
                raise
            except Exception as error:
                if attempt + 1 == PATIENCE:
                    raise ConformanceError(
                        f"no driver can complete epoch {epoch}: {type(error).__name__}: {error}",
                        do="leftovers of a failed attempt or driver must not block later attempts",
                    ) from error
            else:
                return

    def finish(self, epoch: int | None = None) -> None:
        """Complete all epochs up to a given one and one more, deliver buffered rows, and check the target."""
        last = self.epoch if epoch is None else epoch
        for number in range(min(self.epoch, last), last + 2):
            self.complete(number)
        self.drain()
        self.verify()

    def drain(self, driver: RemoteTasks | None = None) -> None:
        """Deliver buffered rows with a drain, or with empty epochs if the sink does not report them.

        `driver` is that of the query, if it runs another sink than that of the test.
        """
        last = self.epoch - 1
        if self.drains:
            (driver or self.driver()).drain()
        for _ in range(self.harness.drain_epochs):
            self.run(driver or self.driver(), self.bring_numbers(self.epoch, [(), ()]))
        self._drained = last

    # --- visible rows

    def found(self) -> Numbers:
        """Read the target."""
        return self.rows.find(self.harness.read(self.target))

    def of_epoch(self, epoch: int) -> Numbers:
        """Return the visible rows of one epoch."""
        return Counter({number: count for number, count in self.found().items() if self._epochs.get(number) == epoch})

    def verify(self) -> None:
        """Compare the target with the guarantee. Rows that the sink may still buffer do not count as missing.

        Raises `ConformanceError`, which lists the rows that are missing, duplicated or of a discarded attempt.
        """
        found = self.found()
        for epoch in self.contents:
            of_epoch = Counter({number: n for number, n in found.items() if self._epochs.get(number) == epoch})
            if epoch in self.counted:
                self._verify_completed(epoch, of_epoch)
            elif self.publishes and self.claim > Guarantee.AT_LEAST_ONCE:
                self._verify_open(epoch, of_epoch)

    def verify_newest(self, rows: Sequence[tuple[int, int]], do: str) -> None:
        """Check that the target has these rows by number and version. Raises `ConformanceError` with a remedy."""
        found = Counter(map(frozen, self.harness.read(self.target)))
        newest = Counter(frozen(self.harness.replacing_row(*row)) for row in rows)
        if found != newest:
            missing = (newest - found).total()
            raise ConformanceError(f"of {newest.total()} rows, {missing} are missing in their newest version", do=do)

    def verify_delivered(self) -> None:
        """Compare the target with the guarantee, without the epochs whose rows may still be buffered in the log."""
        delivered = copy.copy(self)
        delivered.counted = {epoch: content for epoch, content in self.counted.items() if not self._buffers(epoch)}
        delivered.verify()

    def _buffers(self, epoch: int) -> bool:
        return (self.drains or self.harness.drain_epochs > 0) and epoch > self._drained

    def _verify_completed(self, epoch: int, found: Numbers) -> None:
        faults = [self._fault(epoch, found, content) for content in self.counted[epoch]]
        if None in faults:
            return
        fault = min((fault for fault in faults if fault), key=len)
        raise ConformanceError(f"{self.claim.name} does not hold: {fault}")

    def _fault(self, epoch: int, found: Numbers, content: Numbers) -> str | None:
        """Return the violation if this content counts."""
        missing = Counter() if self._buffers(epoch) else content - found
        twice = found - content
        extra = found.keys() - content.keys()
        if missing:
            of = f"of its {content.total()} rows {missing.total()} are missing ({some(missing)})"
            return f"epoch {epoch} is completed, and {of}"
        if self.claim == Guarantee.AT_LEAST_ONCE:
            return None
        if extra:
            return f"{len(extra)} rows of a failed attempt of epoch {epoch} are visible ({some(extra)})"
        if twice:
            return f"of the {content.total()} rows of epoch {epoch}, {len(twice)} are duplicated ({some(twice)})"
        return None

    def _verify_open(self, epoch: int, found: Numbers) -> None:
        if found and not any(found <= content for content in self.contents[epoch]):
            raise ConformanceError(
                f"{self.claim.name} does not hold: epoch {epoch} is not completed, and rows of several attempts are"
                f" visible ({some(found)})"
            )


class Begun:
    """An epoch that a driver has begun and whose tasks can still run."""

    def __init__(
        self,
        trial: Trial,
        driver: RemoteTasks,
        coordinator: EpochCoordinator,
        ticket: Ticket,
        content: Content,
        tasks: list[TaskRows],
    ) -> None:
        """Store the driver's data of the epoch."""
        self.trial = trial
        self.driver = driver
        self.ticket = ticket
        self.content = content
        self.tasks = tasks
        self.answers: dict[int, TaskResponse] = {}
        self._coordinator = coordinator

    def run_task(self, index: int, *, retries: int = 0, attempt: int | None = None) -> TaskResponse:
        """Run one attempt of a task."""
        rows = self.tasks[index]
        return self.driver.run_task(self.ticket, self.content.epoch, index, rows, retries=retries, attempt=attempt)

    def run_tasks(self) -> None:
        """Run the tasks without a result."""
        for index in range(len(self.tasks)):
            if index not in self.answers:
                self.answers[index] = self.run_task(index)

    def finish(self) -> EpochResult:
        """Record and publish."""
        result = self._coordinator.finish(self.ticket, list(self.answers.values()))
        self.trial.note(result, self.content)
        return result


class _Listing:
    """Replaces a sink's `list_parts`."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts

    def __call__(self) -> list[str]:
        return list(self._parts)


def _list_parts_changed(sink: Any, change: Callable[[list[str]], list[str]]) -> None:
    # Set on the innermost sink, whose own calls must return the same parts as the engine's.
    object.__setattr__(delegate_of(sink), "list_parts", _Listing(change(list(sink.list_parts()))))


def claim_of(harness: SinkHarness, sink: ResolvedSink) -> Guarantee:
    """Return the tested guarantee: from the test, or as declared by the sink."""
    return sink.guarantee() if harness.claim is None else harness.claim
