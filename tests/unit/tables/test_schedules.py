"""Drivers, zombies and other writers of one table at random: epochs are there whole, each once, and in their order.

Each attempt brings rows of its own, as a source does that cannot repeat itself. So a mix of two attempts shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.cli.commands.gc import LeftoverCleaner
from outfall.errors import OutfallError
from outfall.protocol.messages import Ticket
from outfall.recovery.log import RecoveryLog
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig
from outfall.testing.memory_log import MemoryLog
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableSnapshot, TableState, TableStore
from tests.unit.support.schedules import Killed, Pause, play

EPOCHS = 4
EMPTY = {1}
"""Epochs without rows."""
OTHERS = 10_000_000
"""The ids of other writers' rows begin here."""


class SlowLog(MemoryLog):
    """A log before whose entries others may come."""

    pause: Pause = staticmethod(lambda: None)

    def append(self, data: bytes, *, after: int) -> int:
        self.pause()
        return super().append(data, after=after)


class SlowRecovery(MemoryRecoveryConfig):
    """The recovery data as one process sees it."""

    def __init__(self, files: dict[str, bytes], pause: Pause) -> None:
        super().__init__()
        self.files = files
        self._pause = pause

    def open(self, step_id: str) -> RecoveryLog:
        log = SlowLog(self.files, f"outfall/{step_id}", step_id)
        log.pause = self._pause
        return log


class TableStory:
    """A table, the logs of the queries that write to it, and what was ever sent."""

    def __init__(self, *, unlooked: bool = False) -> None:
        self.store = TableStore({"id": "int64", "text": "string"}, ["text"])
        self.unlooked = unlooked
        """Whether files are never looked at before a commit, as where one process has just recorded them."""
        self.logs: list[dict[str, bytes]] = [{}]
        self.done = [-1]
        """The last batch that Spark has noted as done, for each log."""
        self.attempts = 0
        self.tickets: list[tuple[LocalDriver, Ticket, int]] = []
        self.checked = 0
        self.backups: list[TableState | None] = []
        self.taken_back = False
        """Whether somebody took epochs of ours out of the table."""

    # --- who writes

    def rows(self, epoch: int) -> list[list[dict[str, Any]]]:
        """The rows of one attempt at an epoch, in two tasks: epoch, attempt and number are in the id."""
        self.attempts += 1
        count = 0 if epoch in EMPTY else 3 + epoch % 2
        ids = [(epoch * 10_000 + self.attempts) * 10 + number for number in range(count)]
        rows = [{"id": one, "text": (None, "a", "b")[one % 3]} for one in ids]
        return [rows[:2], rows[2:]]

    def driver(self, pause: Pause, fates: Sequence[str] = (), log: int = 0) -> LocalDriver:
        link = TableLink(self.store, pause, fates)
        if self.unlooked:
            link.recorded_by = None
        return LocalDriver(MemoryTableSink(link), SlowRecovery(self.logs[log], pause), clock=FakeClock())

    def query(self, pause: Pause, fates: Sequence[str] = (), log: int = 0, *, until: int = EPOCHS) -> None:
        """Run a query to its end, from the first batch that is not completed, as Spark does."""
        driver = self.driver(pause, fates, log)
        try:
            for epoch in range(self.done[log] + 1, until):
                with closing(driver.coordinator()) as coordinator:
                    ticket = coordinator.begin(epoch)
                    self.tickets.append((driver, ticket, epoch))
                    coordinator.finish(ticket, driver.run_tasks(ticket, epoch, self.rows(epoch)))
                self.done[log] = max(self.done[log], epoch)
        finally:
            driver.sink.link.looking = ""

    def restarted(self, pause: Pause, fates: Sequence[str] = (), log: int = 0) -> None:
        """Run a query, and again after errors, as whoever operates it."""
        for _ in range(4):
            with suppress(OutfallError):
                self.query(pause, fates, log)
                return

    def zombie(self, pause: Pause, choose: Callable[[int], int]) -> None:
        """Run tasks of whatever epoch was ever begun once more."""
        for _ in range(3):
            pause()
            if self.tickets:
                driver, ticket, epoch = self.tickets[choose(len(self.tickets))]
                sink = MemoryTableSink(TableLink(self.store, pause))
                sink.open_as(driver.sink)
                other = LocalDriver(sink, SlowRecovery(self.logs[0], pause))
                with suppress(OutfallError):
                    other.run_task(ticket, epoch, 0, [(None, self.rows(epoch)[0])], attempt=1000 + self.attempts)

    def gc(self) -> None:
        """Remove leftovers as an operator does."""
        sink = MemoryTableSink(TableLink(self.store))
        with suppress(OutfallError):
            LeftoverCleaner(sink, SlowRecovery(self.logs[0], lambda: None), "sink").clean_up(take_over=False)

    def others(self, pause: Pause, chance: random.Random, acts: Sequence[str]) -> None:
        """Do what other writers and operators do to a table."""
        for _ in range(chance.randrange(1, 8)):
            for _ in range(chance.randrange(50)):
                pause()
            self.act(chance.choice(acts))

    def act(self, name: str) -> None:
        store = self.store
        if name == "recreate" and store.state is None:
            store.create({"id": "int64", "text": "string"}, ["text"])
            return
        if name == "restore" and self.backups:
            self.taken_back |= store.state is not self.backups[0]
            store.state = self.backups[0]
            return
        if store.state is None:
            return
        match name:
            case "append":
                store.append({"id": OTHERS + self.attempts, "text": "a"})
            case "expire":
                # One that hides a rollback before any driver has looked cannot be told from an honest one.
                if not self.taken_back:
                    store.expire()
            case "compact" | "remove_orphans" | "remove_record":
                self.taken_back |= name == "remove_record"
                getattr(store, name)()
            case "evolve":
                store.partition_by(*(() if store.state.spec else ("text",)))
            case "replace a column":
                store.drop_column("text")
                store.add_column("text", "string")
            case "rollback":
                store.rollback()
                self.taken_back = True
            case "drop":
                store.drop()
                self.taken_back = True
            case "back up":
                self.backups.append(store.state)
            case "gc":
                self.gc()

    # --- what must hold

    def check(self) -> None:
        """Every snapshot holds whole epochs, in their order, and every file that one names is there."""
        for snapshot in self.store.history[self.checked :]:
            self.checked += 1
            self.check_snapshot(snapshot)
        missing = self.store.named_paths() - set(self.store.paths())
        assert not missing, "a snapshot names files that are gone"

    def check_snapshot(self, snapshot: TableSnapshot) -> None:
        found = Counter(row["id"] for row in self.store.rows(snapshot) if row["id"] < OTHERS)
        assert not [one for one, count in found.items() if count > 1], "a row is there twice"
        attempts: dict[int, Counter[int]] = {}
        for one in found:
            attempts.setdefault(one // 100_000, Counter())[one // 10 % 10_000] += 1
        for epoch, by_attempt in attempts.items():
            assert len(by_attempt) == 1, f"rows of several attempts at epoch {epoch}"
            assert by_attempt.total() == 3 + epoch % 2, f"a part of epoch {epoch}"
        filled = [epoch for epoch in range(EPOCHS + 1) if epoch not in EMPTY]
        assert sorted(attempts) == filled[: len(attempts)], f"epochs {sorted(attempts)}, and none before the last"

    def finish(self) -> None:
        """Let everything end that is under way; then a query goes on by one epoch, or says why it cannot."""
        while self.store.late:
            self.store.arrive()
            self.check()
        try:
            for tries in range(3):
                with suppress(*([OutfallError] if tries < 2 and not self.taken_back else [])):
                    self.query(lambda: None, until=EPOCHS + 1)
                    break
        except OutfallError:
            self.check()
            assert self.taken_back or len(self.logs) > 1
            return
        self.check()
        found = {row["id"] // 100_000 for row in self.store.rows() if row["id"] < OTHERS}
        assert found == set(range(EPOCHS + 1)) - EMPTY
        assert not set(self.leftovers()), "what lost attempts left is gone"

    def leftovers(self) -> Sequence[str]:
        """Find, as `outfall gc`, what is left; attempts that wrote after all cleans up leave files for it alone."""
        self.gc()
        cleaner = LeftoverCleaner(
            MemoryTableSink(TableLink(self.store)), SlowRecovery(self.logs[0], lambda: None), "sink"
        )
        return cleaner.find(take_over=False).names


FATES = ("", "", "", "lost", "landed", "late")
HARMLESS = ("append", "compact", "expire", "gc", "append")
LOSING = (*HARMLESS, "evolve", "replace a column", "remove_orphans")
TAKING = (*LOSING, "rollback", "drop", "recreate", "back up", "restore", "remove_record")


def play_at_random(seed: int, acts: Sequence[str], *, copies: bool = False, unlooked: bool = False) -> TableStory:
    """Play two drivers that die and come again, zombies, and others."""
    story, chance = TableStory(unlooked=unlooked), random.Random(seed)
    fates = [[chance.choice(FATES) for _ in range(10)] for _ in range(2)]
    ends = [chance.randrange(5, 150) for _ in range(2)]

    def between() -> None:
        if story.store.late and chance.random() < 0.2:
            story.store.arrive()
        story.check()

    def driver(me: int) -> Callable[[Pause], None]:
        def job(pause: Pause) -> None:
            left = ends[me]

            def mortal() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Killed
                pause()

            with suppress(Killed):
                story.restarted(mortal, fates[me])
            story.restarted(pause)

        return job

    def copied(pause: Pause) -> None:
        for _ in range(chance.randrange(40)):
            pause()
        while not story.logs[0]:
            pause()
        story.logs.append(dict(story.logs[0]))
        story.done.append(story.done[0])
        story.restarted(pause, log=1)

    def others(pause: Pause) -> None:
        story.others(pause, chance, acts)

    def zombie(pause: Pause) -> None:
        story.zombie(pause, chance.randrange)

    play([driver(0), driver(1), zombie, others, *([copied] if copies else [])], chance.randrange, between)
    story.finish()
    return story


SEEDS = st.integers(0, 1 << 32)


@pytest.mark.thorough
@settings(max_examples=6)
@given(SEEDS)
def test_drivers_zombies_and_others_who_do_no_harm(seed: int) -> None:
    play_at_random(seed, HARMLESS)


@pytest.mark.thorough
@settings(max_examples=6)
@given(SEEDS)
def test_what_is_lost_before_it_is_committed_is_written_anew(seed: int) -> None:
    play_at_random(seed, LOSING)


@pytest.mark.thorough
@settings(max_examples=6)
@given(SEEDS)
def test_a_table_that_lost_epochs_gets_none_behind_them(seed: int) -> None:
    play_at_random(seed, TAKING)


@pytest.mark.thorough
@settings(max_examples=6)
@given(SEEDS)
def test_two_copies_of_a_log_never_write_one_table_together(seed: int) -> None:
    play_at_random(seed, LOSING, copies=True)


@pytest.mark.thorough
@settings(max_examples=6)
@given(SEEDS)
def test_files_that_nobody_looks_at_are_there_when_they_are_committed(seed: int) -> None:
    """What cleans up remove is of attempts that nobody can commit any more, not even on a copy of the log."""
    acts = [act for act in LOSING if act != "remove_orphans"]
    play_at_random(seed, acts, copies=True, unlooked=True)


@pytest.mark.thorough
@settings(max_examples=40)
@given(SEEDS)
def test_everybody_at_random(seed: int) -> None:
    everybody(TAKING, True, seed)


@pytest.mark.long
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("acts", [HARMLESS, LOSING, TAKING])
@settings(max_examples=500)
@given(SEEDS)
def test_everybody_at_random_for_long(acts: Sequence[str], copies: bool, seed: int) -> None:
    everybody(acts, copies, seed)


def everybody(acts: Sequence[str], copies: bool, seed: int) -> None:
    # Of two copies of a log only the record can tell.
    play_at_random(seed, [act for act in acts if not copies or act != "remove_record"], copies=copies)
