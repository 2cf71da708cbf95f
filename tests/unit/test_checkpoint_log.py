"""The contract of a log, on every store; and what a crash or a broken disk makes of each."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractFileSystem

from outfall import steps
from outfall.errors import ConfigurationError, RecordError, TransientError
from outfall.recovery import CheckpointRecoveryConfig, EntryExistsError, LogEntry, RecoveryLog


@pytest.fixture(params=["local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "chk") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def local(tmp_path: Path) -> str:
    return str(tmp_path / "chk")


def opened(location: str) -> RecoveryLog:
    return CheckpointRecoveryConfig(location).open("sink")


def filled(location: str, count: int) -> RecoveryLog:
    log = opened(location)
    for number in range(count):
        log.append(b'{"entry":%d}' % (number + 1), after=number)
    return log


def numbers(log: RecoveryLog, **which: Any) -> list[int]:
    return [entry.number for entry in log.read(**which)]


def files(location: str) -> list[str]:
    """The names of all files of the step, relative to its directory."""
    fs, path = fsspec.core.url_to_fs(location)
    root = f"{path}/outfall/sink/"
    return sorted(name.removeprefix(root) for name in fs.find(root))


@contextmanager
def once_at(step: str, act: Callable[[], object]) -> Iterator[None]:
    """Let somebody else act when a writer reaches a step for the first time."""
    pending = [act]

    def listener(reached: str) -> None:
        if reached == step and pending:
            pending.pop()()

    remove = steps.listen(listener)
    try:
        yield
    finally:
        remove()
    assert not pending, f"{step!r} was not reached"


# -- the contract


def test_a_log_that_nobody_wrote_is_empty_and_reading_it_makes_nothing(location: str) -> None:
    log = opened(location)
    assert log.read() == []
    assert log.read(last=3) == []
    log.sweep(keep=[], states=[], generation=9)
    assert files(location) == []
    assert not os.path.exists(location)


def test_entries_are_numbered_from_one_and_given_back_as_they_were(location: str) -> None:
    log = opened(location)
    assert [log.append(data, after=after) for after, data in enumerate([b"{}", b"\xff\x00\n", b""])] == [1, 2, 3]
    assert opened(location).read() == [LogEntry(1, b"{}"), LogEntry(2, b"\xff\x00\n"), LogEntry(3, b"")]
    assert files(location) == [f"{number:020d}.json" for number in (1, 2, 3)]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_number_that_is_taken_or_passed_is_refused(location: str, after: int) -> None:
    before = filled(location, 3).read()
    with pytest.raises(EntryExistsError) as refused:
        opened(location).append(b"late", after=after)
    assert refused.value.number == after + 1
    assert opened(location).read() == before


def test_a_number_freed_by_a_sweep_is_refused(location: str) -> None:
    log = filled(location, 5)
    log.sweep(keep=[5], states=[], generation=0)
    for after in range(5):
        with pytest.raises(EntryExistsError):
            log.append(b"late", after=after)
    assert numbers(log) == [5]
    assert log.append(b"next", after=5) == 6


def test_steps_have_separate_logs(location: str) -> None:
    config = CheckpointRecoveryConfig(location)
    config.open("a").append(b"a", after=0)
    assert config.open("a.b").read() == []
    assert config.open("a.b").append(b"b", after=0) == 1


@pytest.mark.parametrize(
    ("last", "expected"),
    [(0, []), (1, [7]), (3, [4, 6, 7]), (4, [2, 4, 6, 7]), (9, [2, 4, 6, 7]), (None, [2, 4, 6, 7])],
)
def test_read_gives_the_newest_across_gaps(location: str, last: int | None, expected: list[int]) -> None:
    log = filled(location, 7)
    log.sweep(keep=[2, 4, 6], states=[], generation=0)
    assert numbers(log, last=last) == [number for number in expected if number != 5]


def test_read_loads_only_the_newest(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(local, 20)
    loaded: list[str] = []
    load = log._load  # type: ignore[attr-defined]

    def noted(path: str) -> bytes | None:
        loaded.append(path)
        data: bytes | None = load(path)
        return data

    monkeypatch.setattr(log, "_load", noted)
    assert numbers(log, last=2) == [19, 20]
    assert len(loaded) == 2


def test_read_refuses_a_negative_count(location: str) -> None:
    with pytest.raises(ValueError, match="negative"):
        opened(location).read(last=-1)


def test_an_append_that_would_leave_a_hole_is_refused(location: str) -> None:
    log = filled(location, 2)
    with pytest.raises(RecordError, match=r"entry 3 is gone .* newest is now 2"):
        log.append(b"x", after=3)
    assert numbers(log) == [1, 2]


def test_sweep_keeps_what_it_is_told_and_everything_newer(location: str) -> None:
    log = filled(location, 9)
    log.sweep(keep={2, 5}, states=[], generation=0)
    assert numbers(log) == [2, 5, 6, 7, 8, 9]
    log.sweep(keep=[], states=[], generation=0)
    assert numbers(log) == [2, 5, 6, 7, 8, 9]
    log.sweep(keep=[99], states=[], generation=0)
    assert numbers(log) == [], "what to keep is the caller's word"


def test_what_is_kept_is_bounded(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    log, most, descriptors = opened(location), 0, len(os.listdir("/proc/self/fd"))
    for after in range(1_000):
        number = log.append(b"{}", after=after)
        name = log.write_state("part", b"s", generation=number)
        log.sweep(keep=range(number - 4, number + 1), states=[name], generation=number)
        most = max(most, len(files(location)))
    assert numbers(log) == [996, 997, 998, 999, 1000]
    assert most <= 7
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


def test_of_several_writers_exactly_one_wins_each_number(location: str) -> None:
    writers, rounds = 4, 60
    won: dict[int, list[bytes]] = {number: [] for number in range(1, rounds + 1)}
    level = threading.Barrier(writers, timeout=60)

    def write(me: int) -> None:
        log = opened(location)
        for after in range(rounds):
            level.wait()
            data = f"{me} after {after}".encode()
            with suppress(EntryExistsError):
                won[log.append(data, after=after)].append(data)

    with all_at_once("log: newest checked", level), switching_often():
        run_all([partial(write, me) for me in range(writers)])
    assert [len(winners) for winners in won.values()] == [1] * rounds
    assert {entry.number: [entry.data] for entry in opened(location).read()} == won


@contextmanager
def all_at_once(step: str, level: threading.Barrier) -> Iterator[None]:
    """Let nobody pass a step before everybody is there."""

    def listener(reached: str) -> None:
        if reached == step:
            level.wait()

    remove = steps.listen(listener)
    try:
        yield
    finally:
        remove()


@contextmanager
def switching_often() -> Iterator[None]:
    """Make threads interleave where they would seldom."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_a_reader_beside_writer_and_sweeper_never_goes_back(location: str) -> None:
    done = threading.Event()

    def write() -> None:
        log = opened(location)
        for after in range(150):
            number = log.append(b'{"entry":%d}' % (after + 1), after=after)
            log.sweep(keep=[max(1, number - 2), number], states=[], generation=0)
        done.set()

    def read() -> None:
        log, newest = opened(location), 0
        while not done.is_set():
            found = log.read()
            assert all(entry.data == b'{"entry":%d}' % entry.number for entry in found)
            assert max((entry.number for entry in found), default=0) >= newest
            newest = max((entry.number for entry in found), default=0)

    run_all([write, read])


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Run in threads, and raise what one of them raised."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures, failures


def test_an_entry_swept_while_it_is_read_is_left_out_and_newer_ones_are_not_missed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = filled(location, 4), opened(location)
    load_all = log._load_all  # type: ignore[attr-defined]

    def swept_meanwhile(paths: list[str]) -> list[bytes | None]:
        monkeypatch.undo()
        other.append(b"newer", after=4)
        other.sweep(keep=[4, 5], states=[], generation=0)
        loaded: list[bytes | None] = load_all(paths)
        return loaded

    monkeypatch.setattr(log, "_load_all", swept_meanwhile)
    assert numbers(log) == [4, 5]


def test_a_log_that_never_holds_still_is_an_error_not_a_hang(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(location, 1)
    monkeypatch.setattr(log, "_load_all", lambda paths: [None for _ in paths])
    with pytest.raises(TransientError, match="changed 20 times"):
        log.read()


# -- a writer that sleeps in the middle of an append


def test_a_writer_that_slept_through_many_epochs_and_a_sweep_is_fenced(location: str) -> None:
    sleeper, other = filled(location, 2), opened(location)

    def many_epochs() -> None:
        for after in range(2, 9):
            other.append(b"{}", after=after)
        other.sweep(keep=[8, 9], states=[], generation=0)

    with once_at("log: newest checked", many_epochs), pytest.raises(EntryExistsError):
        sleeper.append(b"stray", after=2)
    assert numbers(opened(location), last=2) == [8, 9], "readers look at the newest"
    assert other.append(b"{}", after=9) == 10
    other.sweep(keep=[9, 10], states=[], generation=0)
    assert numbers(other) == [9, 10], "the next sweep removes the stray"


def test_a_writer_whose_temporary_was_swept_is_fenced(local: str) -> None:
    sleeper, other = filled(local, 2), opened(local)

    def epoch_and_sweep() -> None:
        other.append(b"{}", after=2)
        other.sweep(keep=[3], states=[], generation=0)

    with once_at("log: temporary written", epoch_and_sweep), pytest.raises(EntryExistsError):
        sleeper.append(b"late", after=2)
    assert [entry.data for entry in other.read()] == [b"{}"]


@pytest.mark.parametrize("step", ["log: newest checked", "log: temporary written"])
def test_a_writer_that_is_overtaken_leaves_nothing(local: str, step: str) -> None:
    sleeper, other = filled(local, 2), opened(local)
    with once_at(step, lambda: other.append(b"other", after=2)), pytest.raises(EntryExistsError):
        sleeper.append(b"late", after=2)
    assert other.read()[-1] == LogEntry(3, b"other")
    assert len(files(local)) == 3


def test_an_entry_that_somebody_has_gone_on_from_stays(location: str) -> None:
    """The writer was the newest when it linked; the other driver has read it and settles what it says."""
    step = "log: object created" if location.startswith("memory") else "log: linked"
    sleeper, other = filled(location, 2), opened(location)
    with once_at(step, lambda: other.append(b"goes on", after=3)), pytest.raises(EntryExistsError):
        sleeper.append(b"counts", after=2)
    assert [entry.data for entry in other.read(last=2)] == [b"counts", b"goes on"]


def test_temporaries_of_dead_writers_are_swept_once_their_number_is_taken(local: str) -> None:
    log = filled(local, 3)
    directory = Path(local, "outfall", "sink")
    for number in (1, 3, 4):
        directory.joinpath(f".tmp-{number:020d}-{'0' * 32}").write_bytes(b"half an en")
    directory.joinpath(".tmp-notes").write_bytes(b"not ours")
    log.sweep(keep=[], states=[], generation=0)
    assert [name for name in files(local) if name.startswith(".tmp")] == [f".tmp-{4:020d}-{'0' * 32}", ".tmp-notes"]
    assert numbers(log) == [1, 2, 3]


# -- large states


def test_a_large_state_is_given_back(location: str) -> None:
    data = os.urandom(10_000_000)
    name = opened(location).write_state("part/../ä 1", data, generation=3)
    assert "/" not in name
    assert name.startswith("g3-part_.._")
    assert opened(location).read_state(name) == data


def test_equal_states_do_not_meet(location: str) -> None:
    log = opened(location)
    assert len({log.write_state("p", bytes([i]), generation=1) for i in range(5)}) == 5
    assert len(log.write_state("p" * 1000, b"", generation=1)) < 200


def test_states_are_swept_by_generation(location: str) -> None:
    log = filled(location, 2)
    stored = {generation: log.write_state("p", b"x", generation=generation) for generation in (1, 2, 9, 10)}
    kept = log.write_state("q", b"y", generation=1)
    log.sweep(keep=[1, 2], states=[kept], generation=10)
    assert files(location)[2:] == sorted(f"states/{name}" for name in (kept, stored[10]))


def test_a_missing_state_is_an_error_that_says_so(location: str) -> None:
    name = filled(location, 1).write_state("p", b"x", generation=1)
    opened(location).sweep(keep=[1], states=[], generation=2)
    with pytest.raises(RecordError, match=r"is not in .*restore"):
        opened(location).read_state(name)


@pytest.mark.parametrize("name", ["", "..", "../x.state", "/etc/passwd", f"g1-../../x-{'0' * 32}.state", "g1-p.state"])
def test_a_state_cannot_be_read_from_elsewhere(location: str, name: str) -> None:
    with pytest.raises(RecordError, match="not the name of a state"):
        opened(location).read_state(name)


def test_sweeping_what_vanished_meanwhile_is_fine(location: str) -> None:
    log, other = filled(location, 6), opened(location)
    for generation in (1, 1):
        log.write_state("p", b"x", generation=generation)
    with once_at("log: entry swept", lambda: other.sweep(keep=[6], states=[], generation=5)):
        log.sweep(keep=[6], states=[], generation=5)
    assert files(location) == [f"{6:020d}.json"]


# -- killed between any two side effects (local)

CHILD = """
import os, signal, sys
from outfall import steps
from outfall.recovery import CheckpointRecoveryConfig
location, action, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
log, seen = CheckpointRecoveryConfig(location).open("sink"), []
def listener(step):
    seen.append(step)
    if len(seen) == at:
        os.kill(os.getpid(), signal.SIGKILL)
steps.listen(listener)
after = max((entry.number for entry in log.read()), default=0)
if action == "append":
    log.append(b'{"by":"child"}', after=after)
elif action == "state":
    log.write_state("part", b"x" * 100_000, generation=after)
else:
    log.sweep(keep=[after], states=[], generation=99)
print("\\n".join(seen))
"""

WRITING = ["log: file created", "log: file filled"]
APPENDING = [
    *WRITING,
    "log: temporary written",
    "log: linked",
    "log: directory synced",
    "log: temporary removed",
]
MADE = "log: directory made"


def child(location: str, action: str, at: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, location, action, str(at)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("before", "action", "expected"),
    [
        (0, "append", ["log: newest checked", MADE, MADE, MADE, *APPENDING]),
        (2, "append", ["log: newest checked", *APPENDING]),
        (2, "state", [MADE, *WRITING, "log: state written", "log: state durable"]),
        (3, "sweep", ["log: entry swept", "log: entry swept"]),
    ],
)
def test_killed_at_any_step_the_log_is_whole_and_goes_on(
    before: int, action: str, expected: list[str], tmp_path: Path
) -> None:
    assert list(run_unhurt(str(tmp_path / "whole"), before, action)) == expected
    for at, step in enumerate(expected, start=1):
        location = str(tmp_path / str(at))
        if before:
            filled(location, before)
        died = child(location, action, at)
        assert died.returncode == -signal.SIGKILL, died.stderr
        durable = action == "append" and step in APPENDING[3:]
        check_after_death(location, [*range(1, before + 1), *([before + 1] if durable else [])], action, f"at {step!r}")


def run_unhurt(location: str, before: int, action: str) -> list[str]:
    if before:
        filled(location, before)
    done = child(location, action)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def check_after_death(location: str, expected: list[int], action: str, where: str) -> None:
    log = opened(location)
    found = log.read()
    assert all(entry.data.endswith(b"}") for entry in found), where
    if action == "sweep":
        assert found[-1].number == expected[-1], where
    else:
        assert [entry.number for entry in found] == expected, where
    newest = max(expected, default=0)
    assert log.append(b'{"by":"next"}', after=newest) == newest + 1, where
    log.sweep(keep=[newest + 1], states=[], generation=newest + 1)
    assert files(location) == [f"{newest + 1:020d}.json"], where


# -- broken disks and wrong places (local)


def test_bytes_are_durable_before_their_name_is_and_the_name_before_append_returns(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    watch(monkeypatch, done)
    log = opened(local)
    log.append(b"{}", after=0)
    first, directories = done[-3:], done[:-3]
    assert first == ["fsync of 2 bytes", "link", "fsync sink"]
    parent = Path(local).parent
    expected = [f"fsync {parent.parent.name}", "mkdir chk", f"fsync {parent.name}", "mkdir outfall", "fsync chk"]
    assert directories == [*expected, "mkdir sink", "fsync outfall"]
    done.clear()
    log.append(b"{}", after=1)
    assert done == ["fsync of 2 bytes", "link", "fsync sink"]
    done.clear()
    log.write_state("p", b"abc", generation=1)
    assert done == ["fsync outfall", "mkdir states", "fsync sink", "fsync of 3 bytes", "fsync states"]


def watch(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def watched_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        size = f"of {os.path.getsize(path)} bytes"
        done.append(f"fsync {os.path.basename(path) if os.path.isdir(path) else size}")
        fsync(descriptor)

    def watched_link(source: str, target: str) -> None:
        done.append("link")
        link(source, target)

    def watched_mkdir(path: str) -> None:
        done.append(f"mkdir {os.path.basename(path)}")
        mkdir(path)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    monkeypatch.setattr(os, "mkdir", watched_mkdir)


def test_a_directory_whose_maker_died_before_its_sync_is_synced_by_the_next(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(f"{local}/outfall/sink")
    done: list[str] = []
    watch(monkeypatch, done)
    opened(local).append(b"{}", after=0)
    assert done[0] == "fsync outfall"


def test_what_was_read_is_durable(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(local, 1)
    done: list[str] = []
    watch(monkeypatch, done)
    log.read()
    assert done == ["fsync sink"]


def failing(monkeypatch: pytest.MonkeyPatch, function: str, code: int, nth: int = 1) -> list[int]:
    """Let the nth call of an os function fail, and count the calls."""
    calls, real = [0], getattr(os, function)

    def failing_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(os, function, failing_once)
    return calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("function", ["fsync", "link"])
def test_a_write_that_fails_leaves_nothing_and_is_not_called_a_success(
    local: str, function: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, links = filled(local, 1), failing(monkeypatch, "link", 0, nth=0)
    calls = failing(monkeypatch, function, code)
    with pytest.raises(TransientError, match=r"appending recovery entry 2 in .* failed.*What to do") as failed:
        log.append(b"{}", after=1)
    assert calls == [1], "neither is tried again"
    assert links == [0]
    assert isinstance(failed.value.__cause__, OSError)
    assert files(local) == [f"{1:020d}.json"]
    assert log.append(b"{}", after=1) == 2


def test_a_failed_sync_of_the_directory_is_an_error_though_the_entry_is_there(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(local, 1)
    calls = failing(monkeypatch, "fsync", errno.EIO, nth=2)
    with pytest.raises(TransientError, match="Input/output error"):
        log.append(b"{}", after=1)
    assert calls == [2]
    assert numbers(log) == [1, 2]
    with pytest.raises(EntryExistsError):
        log.append(b"{}", after=1)


def test_a_state_that_fails_on_a_full_disk_does_not_stay(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(local, 1)
    log.write_state("p", b"x", generation=1)
    failing(monkeypatch, "fsync", errno.ENOSPC)
    with pytest.raises(TransientError, match=r"writing the state 'p'.*free space"):
        log.write_state("p", b"x" * 1000, generation=1)
    assert len(files(local)) == 2


@pytest.mark.parametrize("function", ["mkdir", "link"])
def test_a_read_only_filesystem_is_a_wrong_configuration(
    local: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, function, errno.EROFS)
    with pytest.raises(ConfigurationError, match=r"Read-only.*recovery="):
        opened(local).append(b"{}", after=0)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_filesystem_without_hard_links_is_refused_with_what_to_use_instead(
    local: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "link", code)
    with pytest.raises(ConfigurationError, match=r"refuses hard links.*\[?recovery=.*s3://"):
        opened(local).append(b"{}", after=0)
    assert files(local) == []


@pytest.mark.parametrize("below", ["", "/chk"])
def test_a_file_in_the_way_is_a_wrong_configuration(tmp_path: Path, below: str) -> None:
    tmp_path.joinpath("file").write_text("somebody's")
    log = opened(f"{tmp_path}/file{below}")
    for use in (log.read, lambda: log.append(b"{}", after=0), lambda: log.write_state("p", b"", generation=1)):
        with pytest.raises(ConfigurationError, match=r"NotADirectoryError.*What to do: make every level"):
            use()
    assert tmp_path.joinpath("file").read_text() == "somebody's"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only directory")
def test_a_read_only_directory_is_a_wrong_configuration(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        opened(f"{tmp_path}/chk").append(b"{}", after=0)


def test_a_log_removed_while_it_is_used_is_not_begun_anew(location: str) -> None:
    log = filled(location, 3)
    fs, path = fsspec.core.url_to_fs(location)
    fs.rm(path, recursive=True)
    with pytest.raises(RecordError, match="emptied or replaced"):
        log.append(b"{}", after=3)
    assert log.read() == []


@pytest.mark.parametrize("content", [b"", b'{"cut'])
def test_a_damaged_entry_is_given_as_it_is(local: str, content: bytes) -> None:
    log = filled(local, 2)
    Path(local, "outfall", "sink", f"{2:020d}.json").write_bytes(content)
    assert log.read()[-1] == LogEntry(2, content)


def test_files_of_others_are_neither_read_nor_swept(local: str) -> None:
    log = filled(local, 2)
    others = ["README", "1.json", f"{1:020d}.json.bak", f".{1:020d}.json.crc", "states/notes", "states/g0-x.state"]
    directory = Path(local, "outfall", "sink")
    directory.joinpath("states").mkdir()
    for name in others:
        directory.joinpath(name).write_text("x")
    log.sweep(keep=[2], states=[], generation=9)
    assert files(local) == sorted([*others, f"{2:020d}.json"])


def test_a_link_whose_reply_was_lost_is_a_success(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lost_reply(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lost_reply)
    assert opened(local).append(b"{}", after=0) == 1


# -- object stores, played by fsspec's memory under another name


class Store(MemoryFileSystem):  # type: ignore[misc]
    """Creates exclusively, as the listed stores do."""

    protocol = "abfs"


class IgnoresTheCondition(Store):
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value)


class DoesNotKnowTheCondition(Store):
    def pipe_file(self, path: str, value: bytes) -> None:
        super().pipe_file(path, value)


class LooksFirst(Store):
    pipe_file = AbstractFileSystem.pipe_file


class LosesReplies(Store):
    """Its client sends again what got no answer, and reports the refusal."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, mode=mode)
        raise FileExistsError(path)


class RefusesWithoutSayingWhy(Store):
    """As s3fs on a server that does not name the failed condition."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        try:
            super().pipe_file(path, value, mode=mode)
        except FileExistsError:
            cause = RuntimeError("PreconditionFailed")
            cause.response = {"ResponseMetadata": {"HTTPStatusCode": 412}}  # type: ignore[attr-defined]
            raise OSError(errno.EINVAL, "a pre-condition did not hold") from cause


class MayNotBeWritten(Store):
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise PermissionError("AccessDenied")


class HasNoBucket(Store):
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise FileNotFoundError("NoSuchBucket")


class CountsWrites(Store):
    written: ClassVar[list[str]] = []

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.written.append(path)
        super().pipe_file(path, value, mode=mode)


def store(monkeypatch: pytest.MonkeyPatch, kind: type[Store]) -> str:
    monkeypatch.setitem(_registry, "abfs", kind)
    return f"abfs://container@account/{uuid.uuid4().hex}"


@pytest.mark.parametrize("kind", [IgnoresTheCondition, DoesNotKnowTheCondition, LooksFirst])
def test_a_store_without_exclusive_create_is_refused(kind: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    location = store(monkeypatch, kind)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"has no exclusive create.*upgrade adlfs.*POSIX"):
            opened(location).append(b"entry", after=0)
    assert [path for path in MemoryFileSystem.store if location.rpartition("/")[2] in path] == []


@pytest.mark.parametrize("kind", [Store, LosesReplies, RefusesWithoutSayingWhy])
def test_a_refusal_is_told_from_a_lost_reply(kind: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    location = store(monkeypatch, kind)
    log, other = opened(location), opened(location)
    assert log.append(b"first", after=0) == 1
    with once_at("log: newest checked", lambda: other.append(b"theirs", after=1)), pytest.raises(EntryExistsError):
        log.append(b"mine", after=1)
    assert [entry.data for entry in log.read()] == [b"first", b"theirs"]


def test_the_probe_runs_once_per_location_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    location = store(monkeypatch, CountsWrites)
    for step in ("a", "b", "c"):
        CheckpointRecoveryConfig(location).open(step).append(b"entry", after=0)
    probes = [path for path in CountsWrites.written if location.rpartition("/")[2] in path and "probe" in path]
    assert len(probes) == 2
    assert [path for path in MemoryFileSystem.store if location.rpartition("/")[2] in path and "probe" in path] == []


def test_who_only_reads_writes_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(store(monkeypatch, MayNotBeWritten)).read() == []


@pytest.mark.parametrize(
    ("kind", "text"), [(MayNotBeWritten, "AccessDenied"), (HasNoBucket, "NoSuchBucket.*create its")]
)
def test_a_store_that_cannot_be_written_is_a_wrong_configuration(
    kind: type[Store], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        opened(store(monkeypatch, kind)).append(b"entry", after=0)
