"""Logs of files and objects, beyond the contract of every log."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from outfall import trace_points
from outfall.errors import RecordError, TransientError
from outfall.recovery import EntryExistsError, LogEntry
from outfall.recovery.file_log import temporary_name
from outfall.testing.recovery_contract import once_at, run_all
from tests.unit.support.logs import files, filled, numbers, opened


def test_a_log_that_nobody_wrote_is_empty_and_reading_it_makes_nothing(location: str) -> None:
    log = opened(location)
    assert log.read() == []
    assert log.read(last=3) == []
    log.clean_up(keep=[], states=[], generation=9)
    assert files(location) == []
    assert not os.path.exists(location)


def test_entries_are_numbered_from_one_and_given_back_as_they_were(location: str) -> None:
    log = opened(location)
    assert [log.append(data, after=after) for after, data in enumerate([b"{}", b"\xff\x00\n", b""])] == [1, 2, 3]
    assert opened(location).read() == [LogEntry(1, b"{}"), LogEntry(2, b"\xff\x00\n"), LogEntry(3, b"")]
    assert files(location) == [f"{number:020d}.json" for number in (1, 2, 3)]


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


def test_an_append_that_would_leave_a_hole_is_refused(location: str) -> None:
    log = filled(location, 2)
    with pytest.raises(RecordError, match=r"entry 3 is missing .* newest one is now 2"):
        log.append(b"x", after=3)
    assert numbers(log) == [1, 2]


def test_clean_up_keeps_what_it_is_told_and_everything_newer(location: str) -> None:
    log = filled(location, 9)
    log.clean_up(keep={2, 5}, states=[], generation=0)
    assert numbers(log) == [2, 5, 6, 7, 8, 9]
    log.clean_up(keep=[], states=[], generation=0)
    assert numbers(log) == [2, 5, 6, 7, 8, 9]
    log.clean_up(keep=[99], states=[], generation=0)
    assert numbers(log) == [], "what to keep is the caller's word"


@pytest.mark.thorough
def test_what_is_kept_is_bounded(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    log, most, descriptors = opened(location), 0, len(os.listdir("/proc/self/fd"))
    for after in range(1_000):
        number = log.append(b"{}", after=after)
        name = log.write_state("part", b"s", generation=number)
        log.clean_up(keep=range(number - 4, number + 1), states=[name], generation=number)
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

    remove = trace_points.listen(listener)
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


def test_an_entry_cleaned_up_while_it_is_read_is_left_out_and_newer_ones_are_not_missed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = filled(location, 4), opened(location)
    load_all = log._load_all  # type: ignore[attr-defined]

    def cleaned_up_meanwhile(paths: list[str]) -> list[bytes | None]:
        monkeypatch.undo()
        other.append(b"newer", after=4)
        other.clean_up(keep=[4, 5], states=[], generation=0)
        loaded: list[bytes | None] = load_all(paths)
        return loaded

    monkeypatch.setattr(log, "_load_all", cleaned_up_meanwhile)
    assert numbers(log) == [4, 5]


def test_a_log_that_never_holds_still_is_an_error_not_a_hang(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(location, 1)
    monkeypatch.setattr(log, "_load_all", lambda paths: [None for _ in paths])
    with pytest.raises(TransientError, match="changed 20 times"):
        log.read()


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


def test_states_are_cleaned_up_by_generation(location: str) -> None:
    log = filled(location, 2)
    stored = {generation: log.write_state("p", b"x", generation=generation) for generation in (1, 2, 9, 10)}
    kept = log.write_state("q", b"y", generation=1)
    log.clean_up(keep=[1, 2], states=[kept], generation=10)
    assert files(location)[2:] == sorted(f"states/{name}" for name in (kept, stored[10]))


def test_a_missing_state_is_an_error_that_says_so(location: str) -> None:
    name = filled(location, 1).write_state("p", b"x", generation=1)
    opened(location).clean_up(keep=[1], states=[], generation=2)
    with pytest.raises(RecordError, match=r"is not in .*restore"):
        opened(location).read_state(name)


@pytest.mark.parametrize("name", ["", "..", "../x.state", "/etc/passwd", f"g1-../../x-{'0' * 32}.state", "g1-p.state"])
def test_a_state_cannot_be_read_from_elsewhere(location: str, name: str) -> None:
    with pytest.raises(RecordError, match="not a valid name of a state"):
        opened(location).read_state(name)


def test_cleaning_up_what_vanished_meanwhile_is_fine(location: str) -> None:
    log, other = filled(location, 6), opened(location)
    for generation in (1, 1):
        log.write_state("p", b"x", generation=generation)
    with once_at("log: entry cleaned up", lambda: other.clean_up(keep=[6], states=[], generation=5)):
        log.clean_up(keep=[6], states=[], generation=5)
    assert files(location) == [f"{6:020d}.json"]


def test_an_erased_log_leaves_no_temporary_entry(local: str) -> None:
    log = filled(local, 2)
    directory = os.path.dirname(log._path("x"))  # type: ignore[attr-defined]
    for name in (temporary_name(2), temporary_name(3)):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(b"half")
    opened(local).erase()
    assert not os.path.exists(directory)


def test_an_entry_whose_directory_is_gone_is_refused_if_the_log_is_another_one(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for others, kind in ((0, TransientError), (3, EntryExistsError)):
        place = f"{local}{others}"
        log = opened(place)

        def gone(number: int, data: bytes, place: str = place, others: int = others) -> None:
            filled(place, others)
            raise FileNotFoundError("the directory was erased")

        monkeypatch.setattr(log, "_create_entry", gone)
        with pytest.raises(kind):
            log.append(b"mine", after=0)


def test_a_copy_that_is_repeated_replaces_only_what_is_not_the_same(local: str) -> None:
    name = "g1-p-00000000000000000000000000000001.state"
    log = opened(local)
    log.restore([LogEntry(1, b"one")], {name: b"state"})
    path = log._state_path(name)  # type: ignore[attr-defined]
    before = os.stat(path).st_ino
    log.restore([LogEntry(1, b"one"), LogEntry(2, b"two")], {name: b"state"})
    assert os.stat(path).st_ino == before  # who reads it at this moment does not miss it
    log.restore([], {name: b"other"})
    assert log.read_state(name) == b"other"
    assert numbers(opened(local)) == [1, 2]
