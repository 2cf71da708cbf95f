"""The trials of one sink: a target, its log and its source, and what must be found in the end whatever happened.

Rows go by the numbers that they were made of.
"""

from __future__ import annotations

import itertools
import math
import os
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from outfall.capabilities import Guarantee, SupportsBufferedRows, SupportsCommitter, SupportsTarget
from outfall.capability_checks import guarantee_of, is_fixed, supports
from outfall.errors import TargetError
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.recovery.log import RecoveryConfig
from outfall.testing.conformance.driver import RemoteTasks, TaskRows, result_of_child
from outfall.testing.conformance.faults import ConformanceError, NotApplicableError, NotTriedError
from outfall.testing.conformance.harness import SinkHarness, gives, is_directory
from outfall.testing.conformance.spying import SpiedSink, worker_of
from outfall.testing.crash_points import crash_at
from outfall.testing.memory_log import MemoryRecoveryConfig

Case = TypeVar("Case")
Numbers = Counter[int]
MOST_SHOWN = 5


class Rows:
    """The rows of one trial: made from numbers on the way in, found again by their content on the way out."""

    def __init__(self, harness: SinkHarness) -> None:
        """Know no row yet."""
        self._harness = harness
        self._numbers: dict[Any, int] = {}

    def make(self, number: int) -> Any:
        """Return the row of a number, a new object each time."""
        row = self._harness.row(number)
        known = self._numbers.setdefault(frozen(row), number)
        if known != number:
            raise ValueError(f"row({number}) equals row({known}): the harness must make a different row of each number")
        return row

    def find(self, rows: Iterable[Any]) -> Numbers:
        """Count the rows that a reader found.

        Raises:
            ConformanceError: one was never sent.
        """
        found: Numbers = Counter()
        strange = []
        for row in rows:
            number = self._numbers.get(frozen(row))
            if number is None:
                strange.append(row)
            else:
                found[number] += 1
        if strange:
            raise ConformanceError(
                f"{len(strange)} rows in the target were never sent, such as {strange[0]!r}",
                do="write values as they come; if the target gives them back in another form, have read() turn them"
                " into what row() makes",
            )
        return found


def frozen(value: Any) -> Any:
    """Return a value as something hashable that equals for equal content. Lists and tuples are the same."""
    if isinstance(value, Mapping):
        return frozenset((key, frozen(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return value


def some(numbers: Iterable[int]) -> str:
    """List a few numbers."""
    chosen = sorted(set(numbers))
    rest = f" and {len(chosen) - MOST_SHOWN} more" if len(chosen) > MOST_SHOWN else ""
    return ", ".join(map(str, chosen[:MOST_SHOWN])) + rest


ROWS = 6
TASKS = 3
_OTHERS = 1000
"""More rows than one query brings in a trial."""
PATIENCE = 3
"""How often an epoch may fail under a fresh driver, one after the other: a seal that failed is to be tried again."""


@dataclass(frozen=True)
class Content:
    """What the source brings for an epoch, by tasks: the numbers of rows."""

    epoch: int
    tasks: tuple[tuple[int, ...], ...]
    new: bool = False
    """Whether no content of these rows was brought before: if the epoch is skipped, it is not this one that counts."""

    @property
    def numbers(self) -> Numbers:
        """All rows, in any order."""
        return Counter(number for task in self.tasks for number in task)


class Trial:
    """A sink's target that outlives its drivers, and a source that brings an epoch until it is completed."""

    def __init__(self, harness: SinkHarness, directory: Path, *, durable_log: bool = False) -> None:
        """Make an empty target in a new directory, and an empty log: in memory, or beside the target."""
        name = uuid.uuid4().hex
        self.harness = harness
        self.directory = directory / name
        place = self.directory / "target"
        place.mkdir(parents=True)
        self.target = harness.new_target(place)
        own = str(self.directory / "recovery") if durable_log else MemoryRecoveryConfig()
        self.recovery: str | RecoveryConfig = harness.make_recovery(self.directory / "recovery") or own
        sink = harness.make_sink(self.target)
        self.fixed = is_fixed(sink)
        self.claim = claim_of(harness, sink)
        self.repeatable = (
            self.claim < Guarantee.EXACTLY_ONCE if harness.repeatable_source is None else harness.repeatable_source
        )
        # Of sinks together some may write in place, and their author says so by giving that check up.
        early = "nothing_visible_before_commit" in harness.not_claimed
        self.publishes = supports(sink, SupportsCommitter) and not early
        self.drains = supports(sink, SupportsBufferedRows)
        self.rows = Rows(harness)
        self.contents: dict[int, list[Numbers]] = {}
        self.counted: dict[int, list[Numbers]] = {}
        """The contents of each completed epoch, of which the target must hold one."""
        self._epochs: dict[int, int] = {}
        self._first_number = 0
        self._drained = -1
        self._change_parts: Callable[[list[str]], list[str]] | None = None

    def beside(self) -> Trial:
        """Make another query with recovery data and rows of its own, on the same target."""
        other = Trial(self.harness, self.directory)
        other.target, other.rows, other._first_number = self.target, self.rows, self._first_number + _OTHERS
        return other

    # --- who writes

    def sink(self) -> Any:
        """Make the sink anew, as each process does, and observe it."""
        sink = self.harness.make_sink(self.target)
        if self._change_parts is not None:
            _list_parts_changed(sink, self._change_parts)
        return SpiedSink(sink)

    @contextmanager
    def listing(self, change: Callable[[list[str]], list[str]]) -> Iterator[None]:
        """Have the sinks that are made within the block list their parts in another way."""
        self._change_parts = change
        try:
            yield
        finally:
            self._change_parts = None

    def driver(self, **options: Any) -> RemoteTasks:
        """Start a driver that remembers nothing."""
        return RemoteTasks(self.sink(), self.recovery, **({"options": self.harness.options()} | options))

    # --- what the source brings

    @property
    def epoch(self) -> int:
        """The first epoch that is not completed."""
        return max(self.counted, default=-1) + 1

    def bring(self, epoch: int, *, rows: int = ROWS, tasks: int = TASKS) -> Content:
        """Bring an epoch: for the first time, or again in other tasks and another order.

        Again it has the same rows where the claim needs that, else others.
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
        """Bring given rows."""
        known = self.contents.setdefault(epoch, [])
        numbers = Counter(number for task in tasks for number in task)
        content = Content(epoch, tuple(map(tuple, tasks)), new=numbers not in known)
        if content.new:
            known.append(numbers)
        self._epochs |= dict.fromkeys(content.numbers, epoch)
        for number in content.numbers:
            # Known from now on, also when another process makes the row.
            self.rows.make(number)
        return content

    def new_numbers(self, count: int, accept: Callable[[int], bool] = lambda number: True) -> list[int]:
        """Choose numbers of rows that were never brought."""
        chosen: list[int] = []
        number = max(self._epochs, default=self._first_number - 1) + 1
        while len(chosen) < count:
            if accept(number):
                chosen.append(number)
            number += 1
        return chosen

    def values(self, content: Content) -> list[list[Any]]:
        """The rows of each task, as the sink's shape takes them."""
        return [[self._value(number) for number in task] for task in content.tasks]

    def _value(self, number: int) -> Any:
        row = self.rows.make(number)
        return (self.harness.key(number), row) if self.fixed else row

    # --- epochs

    def run(self, driver: RemoteTasks, content: Content) -> EpochResult:
        """Run an epoch to its end, and note what must be found from now on."""
        result = driver.run_epoch(content.epoch, self.values(content))
        self.note(result, content)
        return result

    def note(self, result: EpochResult, content: Content) -> None:
        """Note that a driver says the epoch is completed."""
        if result.skipped:
            earlier = [numbers for numbers in self.contents[content.epoch] if numbers != content.numbers]
            if not content.new:
                earlier.append(content.numbers)
            self.counted.setdefault(content.epoch, earlier)
        else:
            self.counted[content.epoch] = [content.numbers]

    def run_epochs(self, count: int, driver: RemoteTasks | None = None) -> RemoteTasks:
        """Run the next epochs without any fault."""
        driver = driver or self.driver()
        for _ in range(count):
            self.run(driver, self.bring(self.epoch))
        return driver

    def run_until(self, spec: str, content: Content, driver: RemoteTasks | None = None) -> list[str]:
        """Run an epoch and crash at a step.

        Returns:
            The steps that were reached.
        """
        with crash_at(spec) as seen:
            self.run(driver or self.driver(), content)
        return seen

    def begin(self, driver: RemoteTasks, content: Content) -> Begun:
        """Begin an epoch and run no task yet."""
        tasks = driver.routed(self.values(content))
        driver.expect_tasks(len(tasks))
        coordinator = driver.coordinator()
        return Begun(self, driver, coordinator, coordinator.begin(content.epoch), content, tasks)

    def complete(self, epoch: int) -> None:
        """Have fresh drivers bring an epoch, again if it was brought before, until it is completed.

        Raises:
            ConformanceError: it does not get completed.
        """
        for attempt in range(PATIENCE):
            try:
                self.run(self.driver(), self.bring(epoch))
            except ConformanceError:
                raise
            except Exception as error:
                if attempt + 1 == PATIENCE:
                    raise ConformanceError(
                        f"no driver gets epoch {epoch} completed any more: {type(error).__name__}: {error}",
                        do="whatever a lost attempt or driver left must not stop those that come after it",
                    ) from error
            else:
                return

    def finish(self, epoch: int | None = None) -> None:
        """Complete all epochs up to one, and one more; bring what is held back to light; check the target."""
        last = self.epoch if epoch is None else epoch
        for number in range(min(self.epoch, last), last + 2):
            self.complete(number)
        self.drain()
        self.verify()

    def drain(self) -> None:
        """Drain, or where the sink does not say what it holds run epochs without rows, until nothing is held back."""
        last = self.epoch - 1
        if self.drains:
            self.driver().drain()
        for _ in range(self.harness.drain_epochs):
            self.run(self.driver(), self.bring_numbers(self.epoch, [(), ()]))
        self._drained = last

    # --- what a reader finds

    def found(self) -> Numbers:
        """Read the target."""
        return self.rows.find(self.harness.read(self.target))

    def of_epoch(self, epoch: int) -> Numbers:
        """Read the target, and keep the rows of one epoch."""
        return Counter({number: count for number, count in self.found().items() if self._epochs.get(number) == epoch})

    def verify(self) -> None:
        """Compare the target with the claim.

        Rows that a sink may still hold back are not missed.

        Raises:
            ConformanceError: saying which rows are missing, there twice, or of an attempt that does not count.
        """
        found = self.found()
        for epoch in self.contents:
            of_epoch = Counter({number: n for number, n in found.items() if self._epochs.get(number) == epoch})
            if epoch in self.counted:
                self._verify_completed(epoch, of_epoch)
            elif self.publishes and self.claim > Guarantee.AT_LEAST_ONCE:
                self._verify_open(epoch, of_epoch)

    def _verify_completed(self, epoch: int, found: Numbers) -> None:
        faults = [self._fault(epoch, found, content) for content in self.counted[epoch]]
        if None in faults:
            return
        fault = min((fault for fault in faults if fault), key=len)
        raise ConformanceError(f"{self.claim.name} is not true: {fault}")

    def _fault(self, epoch: int, found: Numbers, content: Numbers) -> str | None:
        """What is wrong if this is the content that counts."""
        held_back = (self.drains or self.harness.drain_epochs > 0) and epoch > self._drained
        missing = set() if held_back else content.keys() - found.keys()
        twice = {number for number, count in found.items() if count > 1}
        extra = found.keys() - content.keys()
        if missing:
            of = f"of its {len(content)} rows {len(missing)} are missing ({some(missing)})"
            return f"epoch {epoch} is completed, and {of}"
        if self.claim == Guarantee.AT_LEAST_ONCE:
            return None
        if extra:
            return f"{len(extra)} rows that a lost attempt of epoch {epoch} wrote are visible ({some(extra)})"
        if twice:
            return f"of the {len(content)} rows of epoch {epoch}, {len(twice)} are there more than once ({some(twice)})"
        return None

    def _verify_open(self, epoch: int, found: Numbers) -> None:
        if found and not any(found <= content for content in self.contents[epoch]):
            raise ConformanceError(
                f"{self.claim.name} is not true: epoch {epoch} is not completed, and rows of several attempts are"
                f" visible ({some(found)})"
            )


class Begun:
    """An epoch that a driver has begun: its tasks may still run, whatever happens meanwhile."""

    def __init__(
        self,
        trial: Trial,
        driver: RemoteTasks,
        coordinator: EpochCoordinator,
        ticket: Ticket,
        content: Content,
        tasks: list[TaskRows],
    ) -> None:
        """Hold what the driver has in hand."""
        self.trial = trial
        self.driver = driver
        self.ticket = ticket
        self.content = content
        self.tasks = tasks
        self.answers: dict[int, TaskResponse] = {}
        self._coordinator = coordinator

    def run_task(self, index: int, *, retries: int = 0, attempt: int | None = None) -> TaskResponse:
        """Run an attempt of a task."""
        rows = self.tasks[index]
        return self.driver.run_task(self.ticket, self.content.epoch, index, rows, retries=retries, attempt=attempt)

    def run_tasks(self) -> None:
        """Run the tasks that have not answered."""
        for index in range(len(self.tasks)):
            if index not in self.answers:
                self.answers[index] = self.run_task(index)

    def finish(self) -> EpochResult:
        """Record and publish."""
        result = self._coordinator.finish(self.ticket, list(self.answers.values()))
        self.trial.note(result, self.content)
        return result


class _Listing:
    """Stands in place of a sink's `list_parts`."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts

    def __call__(self) -> list[str]:
        return list(self._parts)


def _list_parts_changed(sink: Any, change: Callable[[list[str]], list[str]]) -> None:
    # On the sink that does the work, whose own calls must find the same parts as the engine.
    object.__setattr__(worker_of(sink), "list_parts", _Listing(change(list(sink.list_parts()))))


def claim_of(harness: SinkHarness, sink: Any) -> Guarantee:
    """What is claimed for a sink: in its test, or by itself."""
    return guarantee_of(sink) if harness.claim is None else harness.claim


def dealt(numbers: Sequence[int], tasks: int, *, first_empty: bool = False) -> list[list[int]]:
    """Deal rows out to tasks, evenly; or leave the first one empty when there are others."""
    receiving = tasks - 1 if first_empty and tasks > 1 else tasks
    dealt_out = [list(numbers[index::receiving]) for index in range(receiving)]
    return [[], *dealt_out] if receiving < tasks else dealt_out


BY_DEFAULT = {"lose", "lose_target", "breaking"}
"""What the suite does by itself to a target that is a directory."""


class Trials:
    """Makes trials of a sink. Each check gets one of these."""

    def __init__(self, harness: SinkHarness, directory: Path) -> None:
        """Work in a directory; one target is made in it to see what the sink is."""
        self.harness = harness
        self.directory = directory
        place = directory / "sample"
        place.mkdir(parents=True, exist_ok=True)
        self.target = harness.new_target(place)
        self.sink: Any = harness.make_sink(self.target)
        self.fixed = is_fixed(self.sink)
        self.claim = claim_of(harness, self.sink)

    def new(self, *, durable_log: bool = False) -> Trial:
        """Make a trial with an empty target."""
        return Trial(self.harness, self.directory, durable_log=durable_log)

    def chosen(self, cases: Iterable[Case]) -> list[Case]:
        """Return all cases of a check, or as many as the author wants, spread over all."""
        every = list(cases)
        most = self.harness.most_cases
        if most is None or len(every) <= most:
            return every
        # By the golden section, so that of pairs (step, moment) not each has the same moment.
        stride = next(step for step in itertools.count(len(every) * 5 // 8 or 1) if math.gcd(step, len(every)) == 1)
        return [every[index] for index in sorted(number * stride % len(every) for number in range(most))]

    @property
    def once(self) -> bool:
        """Whether more is claimed than at-least-once."""
        return self.claim > Guarantee.AT_LEAST_ONCE

    @property
    def strict(self) -> bool:
        """Whether what cannot be tried fails the run."""
        return self.claim == Guarantee.EXACTLY_ONCE if self.harness.strict is None else self.harness.strict

    def needs(self, condition: bool, reason: str) -> None:
        """Say that the check does not apply unless the condition holds."""
        if not condition:
            raise NotApplicableError(reason)

    def needs_to_try(self, condition: bool, reason: str) -> None:
        """Leave the check untried unless the condition holds: what is claimed might still not be true."""
        if not condition:
            raise NotTriedError(reason, strict=self.strict)

    def needs_target(self) -> None:
        """Leave the check untried unless the sink compares its target with the recovery data."""
        self.needs_to_try(supports(self.sink, SupportsTarget), "the sink has no SupportsTarget")

    def needs_from_author(self, method: str) -> None:
        """Leave the check untried unless the author gives an optional method, or the target is a directory."""
        given = gives(self.harness, method) or (method in BY_DEFAULT and is_directory(self.target))
        self.needs_to_try(given, f"the test gives no {method}()")

    def needs_processes(self) -> None:
        """Leave a check out where a child process cannot write to the target.

        Raises:
            NotTriedError: saying why.
            ConformanceError: a run failed in a child process.
        """
        self.needs_to_try(hasattr(os, "fork"), "this system has no fork()")
        outlives = self.outlives_this_process()
        self.needs_to_try(outlives, "the target is in this process, and a child's writing does not reach it")

    def outlives_this_process(self) -> bool:
        """Whether what a child process writes to a target is there when it is gone.

        Raises:
            ConformanceError: a run failed in a child process, which is no sign of a target in this one.
        """
        if not hasattr(os, "fork"):
            return False
        trial = self.new(durable_log=True)
        content = trial.bring(0)
        _check_child("an epoch", partial(_run_anew, trial, content))
        trial.counted[0] = [content.numbers]
        for _ in range(self.harness.drain_epochs):
            empty = trial.bring_numbers(trial.epoch, [(), ()])
            if not _goes_on(trial, "an epoch after another", partial(_run_anew, trial, empty)):
                return False
            trial.counted[empty.epoch] = [empty.numbers]
        if trial.drains and not _goes_on(trial, "a drain", partial(_drain, trial)):
            return False
        return bool(trial.found())


def _run_anew(trial: Trial, content: Content) -> None:
    trial.run(trial.driver(), content)


def _drain(trial: Trial) -> None:
    trial.driver().drain()


def _goes_on(trial: Trial, what: str, action: Callable[[], Any]) -> bool:
    """Run what builds on another process; `False` when that one's rows are gone with it, and the target says so."""
    try:
        _check_child(what, action)
    except ConformanceError as error:
        if isinstance(error.__cause__, TargetError) and not trial.found():
            return False
        raise
    return True


def _check_child(what: str, action: Callable[[], Any]) -> None:
    """Run something in a child process, which must come to its end.

    Raises:
        ConformanceError: it did not; its cause is a `TargetError` where the child raised one.
    """

    def run() -> tuple[str, bool] | None:
        try:
            action()
        except Exception as error:
            if os.environ.get("OUTFALL_TEST_VERBOSE"):
                traceback.print_exc()
            return f"{type(error).__name__}: {error}", isinstance(error, TargetError)
        return None

    try:
        failed = result_of_child(run)
    except ChildProcessError as error:
        failed = str(error), False
    if failed:
        text, of_target = failed
        raise ConformanceError(
            f"{what} failed in a process of its own: {text}",
            do="keep nothing that only one process has: on Spark a sink is used in several, and a run may be the"
            " first of its process (OUTFALL_TEST_VERBOSE=1 prints the traceback)",
        ) from (TargetError(text) if of_target else None)
