"""Contract tests for recovery stores. Authors subclass the test class.

The protocol relies on one primitive, `RecoveryLog.append`, and on a log that neither loses entries nor exposes partial
ones. These tests check both from outside with minimal sinks. The tests of each store cover its implementation.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from outfall import trace_points
from outfall.errors import FencedError, RecordError, require_extra
from outfall.protocol.step import EpochOptions
from outfall.recovery.history import KEPT_EPOCHS, history
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryConfig, RecoveryLog, heartbeat_name
from outfall.testing.crash_points import crash_at
from outfall.testing.local_engine import LocalDriver
from outfall.testing.minimal_sinks import CountingSink, HoldingSink, MemoryTarget, PublishingSink

require_extra("testing", "pytest")

import pytest

_STEP = "sink"


class RecoveryContract:
    """Subclass it as `TestMyStore`, implement `make_recovery` and `stored_bytes`, and run pytest.

    Fixtures can set attributes of `self`.
    """

    outlives_processes = True
    """Whether data of a killed process survives; false for a store in memory."""
    keeps_heartbeats = True
    """Whether the store supports heartbeats. Without them, retries are not visible."""
    parts = 1_000
    """Number of parts in the test with many parts."""

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        """Create a configuration of an empty store, in an empty directory for this test."""
        raise NotImplementedError

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        """Return the current size of the store in its own unit. No log is open.

        A store with deferred removal, such as a broker with compaction, can compact first.
        """
        raise NotImplementedError

    @pytest.fixture
    def recovery(self, tmp_path: Path) -> RecoveryConfig:
        """The store of one test."""
        return self.make_recovery(tmp_path)

    # --- entries

    def test_a_log_that_nobody_wrote_is_empty(self, recovery: RecoveryConfig) -> None:
        with closing(recovery.open(_STEP)) as log:
            assert (log.read(), log.read(last=3), log.numbers()) == ([], [], [])
            log.clean_up(keep=[], states=[], generation=9)
        assert history(recovery, _STEP) == []

    def test_entries_are_numbered_from_one_and_given_back_as_they_were(self, recovery: RecoveryConfig) -> None:
        contents = [b"{}", b"\xff\x00\n", b"", b"x" * 3_000_000]
        with closing(recovery.open(_STEP)) as log:
            assert [log.append(data, after=after) for after, data in enumerate(contents)] == [1, 2, 3, 4]
        with closing(recovery.open(_STEP)) as log:
            assert log.read() == [LogEntry(number, data) for number, data in enumerate(contents, start=1)]
            assert log.numbers() == [1, 2, 3, 4]

    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_a_number_that_is_taken_or_passed_is_refused(self, recovery: RecoveryConfig, after: int) -> None:
        with filled(recovery, 3) as log:
            before = log.read()
            with closing(recovery.open(_STEP)) as late, pytest.raises(EntryExistsError) as refused:
                late.append(b"late", after=after)
            assert refused.value.number == after + 1
            assert log.read() == before

    def test_a_number_freed_by_a_clean_up_is_refused(self, recovery: RecoveryConfig) -> None:
        with filled(recovery, 5) as log:
            log.clean_up(keep=[5], states=[], generation=0)
            for after in range(5):
                with pytest.raises(EntryExistsError):
                    log.append(b"late", after=after)
            assert log.numbers() == [5]
            assert log.append(b"next", after=5) == 6

    def test_an_append_that_would_leave_a_hole_is_refused(self, recovery: RecoveryConfig) -> None:
        with filled(recovery, 2) as log:
            with pytest.raises(RecordError, match="entry 3 is"):
                log.append(b"x", after=3)
            assert log.numbers() == [1, 2]

    def test_steps_have_separate_logs(self, recovery: RecoveryConfig) -> None:
        with closing(recovery.open("a")) as one, closing(recovery.open("a.b")) as other:
            one.append(b"a", after=0)
            assert other.read() == []
            assert other.append(b"b", after=0) == 1

    @pytest.mark.parametrize(("last", "expected"), [(0, []), (1, [7]), (3, [4, 6, 7]), (9, [2, 4, 6, 7])])
    def test_read_gives_the_newest_across_gaps(self, recovery: RecoveryConfig, last: int, expected: list[int]) -> None:
        with filled(recovery, 7) as log:
            log.clean_up(keep=[2, 4, 6], states=[], generation=0)
            assert [entry.number for entry in log.read(last=last)] == expected
            assert log.numbers() == [2, 4, 6, 7]
            with pytest.raises(ValueError, match="negative"):
                log.read(last=-1)

    def test_a_clean_up_keeps_what_it_is_told_and_everything_newer(self, recovery: RecoveryConfig) -> None:
        with filled(recovery, 9) as log:
            log.clean_up(keep={2, 5}, states=[], generation=0)
            assert log.numbers() == [2, 5, 6, 7, 8, 9]
            log.clean_up(keep=[], states=[], generation=0)
            assert log.numbers() == [2, 5, 6, 7, 8, 9]

    def test_entries_that_are_known_change_no_read(self, recovery: RecoveryConfig) -> None:
        with filled(recovery, 5) as log:
            log.clean_up(keep=[3, 5], states=[], generation=0)
            entries = log.read()
            known = {entry.number: entry.data for entry in entries}
            assert log.read(known={**known, 1: b"removed", 6: b"not there"}) == entries
            assert log.read(last=1, known=known) == entries[-1:]
            assert log.read(known={3: b"{}", 5: b"of another log"}) == entries
            assert log.listed() == log.numbers() == [3, 5]

    # --- states

    def test_a_large_state_is_given_back(self, recovery: RecoveryConfig) -> None:
        data = os.urandom(10_000_000)
        with closing(recovery.open(_STEP)) as log:
            name = log.write_state("part/../ä 1", data, generation=3)
        with closing(recovery.open(_STEP)) as log:
            assert log.read_state(name) == data

    def test_equal_states_do_not_meet(self, recovery: RecoveryConfig) -> None:
        with closing(recovery.open(_STEP)) as log:
            assert len({log.write_state("p", bytes([i]), generation=1) for i in range(5)}) == 5
            assert log.read_state(log.write_state("p" * 1000, b"", generation=1)) == b""

    def test_states_are_cleaned_up_by_generation(self, recovery: RecoveryConfig) -> None:
        with filled(recovery, 2) as log:
            stored = {generation: log.write_state("p", b"x", generation=generation) for generation in (1, 2, 9, 10)}
            kept = log.write_state("q", b"y", generation=1)
            log.clean_up(keep=[1, 2], states=[kept], generation=10)
        with closing(recovery.open(_STEP)) as log:
            assert log.read_state(kept) == b"y"
            assert log.read_state(stored[10]) == b"x"
            for generation in (1, 2, 9):
                # A store can remove it later. The test of bounded growth covers the removal.
                with suppress(RecordError):
                    assert log.read_state(stored[generation]) == b"x"

    def test_heartbeats_are_replaced_removed_and_cleaned_up_by_generation(self, recovery: RecoveryConfig) -> None:
        if not self.keeps_heartbeats:
            pytest.skip("the store does not support heartbeats")
        with filled(recovery, 2) as log, closing(recovery.open(_STEP)) as reader:
            log.set_heartbeat(heartbeat_name("task 0", 1), b"old")
            for data in (b"first", b"second"):
                log.set_heartbeat(heartbeat_name("task 0", 2), data)
            log.set_heartbeat(heartbeat_name("driver", 2), b"gone")
            log.set_heartbeat(heartbeat_name("driver", 2), None)
            log.set_heartbeat(heartbeat_name("task 9", 2), None)
            assert sorted(reader.heartbeats()) == [b"old", b"second"]
            log.clean_up(keep=[1, 2], states=[], generation=2)
            assert reader.heartbeats() == [b"second"]
            assert [entry.number for entry in reader.read()] == [1, 2]
        with closing(recovery.open("another")) as other:
            assert other.heartbeats() == []

    def test_a_missing_state_is_an_error(self, recovery: RecoveryConfig, tmp_path: Path) -> None:
        with closing(self.make_recovery(_made(tmp_path / "other")).open(_STEP)) as other:
            name = other.write_state("p", b"x", generation=1)
        with filled(recovery, 1) as log:
            log.write_state("p", b"another", generation=1)
            with pytest.raises(RecordError, match=r"is not in .*restore"):
                log.read_state(name)

    @pytest.mark.parametrize("name", ["", "..", "../x.state", "/etc/passwd", f"g1-../../x-{'0' * 32}.state"])
    def test_a_state_cannot_be_read_from_elsewhere(self, recovery: RecoveryConfig, name: str) -> None:
        with closing(recovery.open(_STEP)) as log, pytest.raises(RecordError, match="not a valid name of a state"):
            log.read_state(name)

    # --- concurrency

    def test_of_several_writers_exactly_one_wins_each_number(self, recovery: RecoveryConfig) -> None:
        writers, rounds = 4, 25
        won: dict[int, list[bytes]] = {number: [] for number in range(1, rounds + 1)}
        level = threading.Barrier(writers, timeout=60)

        def write(me: int) -> None:
            with closing(recovery.open(_STEP)) as log:
                for after in range(rounds):
                    level.wait()
                    data = f"{me} after {after}".encode()
                    with suppress(EntryExistsError):
                        won[log.append(data, after=after)].append(data)

        with switching_often():
            run_all([partial(write, me) for me in range(writers)])
        assert [len(winners) for winners in won.values()] == [1] * rounds
        with closing(recovery.open(_STEP)) as log:
            assert {entry.number: [entry.data] for entry in log.read()} == won

    def test_a_reader_beside_writer_and_cleaner_never_goes_back(self, recovery: RecoveryConfig) -> None:
        done = threading.Event()

        def write() -> None:
            try:
                with closing(recovery.open(_STEP)) as log:
                    for after in range(60):
                        number = log.append(b'{"entry":%d}' % (after + 1), after=after)
                        log.clean_up(keep=[max(1, number - 2), number], states=[], generation=0)
            finally:
                done.set()

        def read() -> None:
            newest = 0
            with closing(recovery.open(_STEP)) as log:
                while not done.is_set():
                    found = log.read()
                    assert all(entry.data == b'{"entry":%d}' % entry.number for entry in found)
                    assert max((entry.number for entry in found), default=0) >= newest
                    newest = max((entry.number for entry in found), default=0)

        run_all([write, read])

    @pytest.mark.parametrize("point", ["after BEGIN", "after collect", "after PREPARED", "after COMMITTING"])
    def test_the_older_of_two_drivers_is_refused_at_each_of_its_writes(
        self, recovery: RecoveryConfig, point: str
    ) -> None:
        ledger = MemoryTarget()
        older, newer = (LocalDriver(PublishingSink(ledger), recovery) for _ in range(2))
        with once_at(point, lambda: newer.run_epoch(0, [["row"]])), pytest.raises(FencedError):
            older.run_epoch(0, [["row"]])
        assert list(ledger.published.values()) == [["row"]]
        assert [summary.epoch for summary in history(recovery) if summary.rows] == [0]
        assert newer.run_epoch(1, [["next"]]).counts["rows"] == 1

    # --- crashes and restarts

    def test_a_crash_at_any_step_of_a_write_leaves_it_whole_or_undone(self, tmp_path: Path) -> None:
        for index, (point, number) in enumerate(self._points(tmp_path / "steps")):
            recovery = self.make_recovery(_made(tmp_path / str(index)))
            with closing(recovery.open(_STEP)) as log, crash_at(f"{point}#{number}"):
                _write_a_little(log)
            _check_a_little(recovery)

    def test_a_process_killed_at_any_step_of_a_write_leaves_it_whole_or_undone(self, tmp_path: Path) -> None:
        if not self.outlives_processes:
            pytest.skip("the data of this store ends with its process")
        points = [(point, number) for point, number in self._points(tmp_path / "steps") if number in (1, 3)]
        for index, (point, number) in enumerate(points):
            recovery = self.make_recovery(_made(tmp_path / str(index)))
            _killed_at(point, number, partial(_write_to, recovery))
            _check_a_little(recovery)

    @pytest.mark.parametrize("large", [False, True])
    def test_every_restart_goes_on_from_the_last_state(self, recovery: RecoveryConfig, large: bool) -> None:
        sink = CountingSink(parts=2, padding=100_000 if large else 0)
        for epoch in range(10):
            LocalDriver(sink, recovery).run_epoch(epoch, [[("0", 1), ("1", 1), ("2", 1)]])
        assert sink.opened == {(part, epoch): epoch * rows for part, rows in sink.rows.items() for epoch in range(10)}

    @pytest.mark.parametrize("large", [False, True])
    def test_any_number_of_writers_goes_on_from_the_states_of_any_other(
        self, recovery: RecoveryConfig, large: bool
    ) -> None:
        sink, brought = HoldingSink(padding=100_000 if large else 0), 0
        for epoch, workers in enumerate((3, 1, 5, 2)):
            driver = LocalDriver(sink, recovery, options=EpochOptions(worker_count=workers))
            driver.run_epoch(epoch, [[[epoch, worker, row] for row in range(2)] for worker in range(workers)])
            assert len(sink.delivered) == brought
            assert history(recovery)[-1].buffered_rows == 2 * workers
            brought += 2 * workers
        LocalDriver(sink, recovery).drain()
        assert sorted(sink.delivered) == [
            [epoch, worker, row] for epoch, workers in enumerate((3, 1, 5, 2)) for worker in range(workers)
            for row in range(2)
        ]  # fmt: skip
        assert history(recovery)[-1].buffered_rows == 0

    def test_thousands_of_parts_keep_their_states(self, recovery: RecoveryConfig) -> None:
        sink = CountingSink(parts=self.parts)
        keys = [(str(number), 1) for number in range(self.parts)]
        for epoch in range(2):
            LocalDriver(sink, recovery).run_epoch(epoch, [keys])
        assert sink.opened == {(part, epoch): epoch * n for part, n in sink.rows.items() for epoch in range(2)}

    def test_what_is_stored_stays_bounded(self, recovery: RecoveryConfig) -> None:
        self._run_epochs(recovery, KEPT_EPOCHS + 30)

    @pytest.mark.long
    def test_what_is_stored_stays_bounded_for_long(self, recovery: RecoveryConfig) -> None:
        self._run_epochs(recovery, 10_000)

    def _run_epochs(self, recovery: RecoveryConfig, epochs: int) -> None:
        sink = CountingSink(parts=1, padding=100_000)
        driver = LocalDriver(sink, recovery, options=EpochOptions())
        descriptors = _descriptors()
        size = most = 0
        for epoch in range(epochs):
            coordinator = driver.coordinator()
            with closing(coordinator):
                ticket = coordinator.begin(epoch)
                coordinator.finish(ticket, driver.run_tasks(ticket, epoch, [[("0", 1)]]))
            if epoch == KEPT_EPOCHS + 5:
                size = self.stored_bytes(recovery)
            if epoch > KEPT_EPOCHS + 5 and epoch % 10 == 0:
                most = max(most, self.stored_bytes(recovery))
        assert len(history(recovery)) == KEPT_EPOCHS
        assert most <= size * 1.1
        assert _descriptors() <= descriptors + 2

    def _points(self, directory: Path) -> list[tuple[str, int]]:
        """Return the store's steps during a short write, with their counts."""
        seen: list[tuple[str, int]] = []

        def listener(reached: str) -> None:
            if reached.startswith("log:"):
                seen.append((reached, sum(reached == before for before, _ in seen) + 1))

        recovery = self.make_recovery(_made(directory))
        remove = trace_points.listen(listener)
        try:
            with closing(recovery.open(_STEP)) as log:
                _write_a_little(log)
        finally:
            remove()
        assert seen, "the store reaches no named step (outfall.trace_points.reached)"
        return seen


def _write_to(recovery: RecoveryConfig) -> None:
    _write_a_little(recovery.open(_STEP))


def _write_a_little(log: RecoveryLog) -> None:
    log.append(b"first", after=0)
    log.write_state("p", b"state" * 1000, generation=1)
    log.append(b"second", after=1)
    log.append(b"third", after=2)
    log.clean_up(keep=[3], states=[], generation=2)


def _check_a_little(recovery: RecoveryConfig) -> None:
    """Check that the crash left a prefix of the entries, and that the log can be continued."""
    names = {1: b"first", 2: b"second", 3: b"third"}
    with closing(recovery.open(_STEP)) as log:
        found = log.read()
        numbers = [entry.number for entry in found]
        assert {entry.number: entry.data for entry in found}.items() <= names.items()
        newest = max(numbers, default=0)
        assert newest == 3 or numbers == list(range(1, newest + 1)), numbers
        assert log.append(b"after the crash", after=newest) == newest + 1
        log.clean_up(keep=[newest + 1], states=[], generation=9)
        assert [entry.data for entry in log.read()] == [b"after the crash"]


@contextmanager
def filled(recovery: RecoveryConfig, count: int) -> Iterator[RecoveryLog]:
    """Return a log with the given number of entries."""
    with closing(recovery.open(_STEP)) as log:
        for number in range(count):
            log.append(b'{"entry":%d}' % (number + 1), after=number)
        yield log


def _killed_at(point: str, number: int, act: Callable[[], Any]) -> None:
    """Run in a separate process, which is killed at the n-th arrival at a step."""
    child = os.fork()
    if child == 0:
        left = [number]

        def listener(reached: str) -> None:
            left[0] -= reached == point
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            trace_points.listen(listener)
            act()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"{point} was not reached"


@contextmanager
def once_at(step: str, act: Callable[[], object]) -> Iterator[None]:
    """Run an action at the first arrival at a step."""
    pending = [act]

    def listener(reached: str) -> None:
        if reached == step and pending:
            pending.pop()()

    remove = trace_points.listen(listener)
    try:
        yield
    finally:
        remove()
    assert not pending, f"{step!r} was not reached"


@contextmanager
def switching_often() -> Iterator[None]:
    """Make threads interleave more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Run in threads, and raise an error of any of them."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    # Daemon threads: a hanging thread fails its test and must not block the exit of the interpreter.
    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
