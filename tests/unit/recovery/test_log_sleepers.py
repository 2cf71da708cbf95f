"""A writer that sleeps in the middle of an append."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.recovery import EntryExistsError, LogEntry
from outfall.testing.recovery_contract import once_at
from tests.unit.support.logs import files, filled, numbers, opened


def test_a_writer_that_slept_through_many_epochs_and_a_clean_up_is_fenced(location: str) -> None:
    sleeper, other = filled(location, 2), opened(location)

    def many_epochs() -> None:
        for after in range(2, 9):
            other.append(b"{}", after=after)
        other.clean_up(keep=[8, 9], states=[], generation=0)

    with once_at("log: newest checked", many_epochs), pytest.raises(EntryExistsError):
        sleeper.append(b"stray", after=2)
    assert numbers(opened(location), last=2) == [8, 9], "readers look at the newest"
    assert other.append(b"{}", after=9) == 10
    other.clean_up(keep=[9, 10], states=[], generation=0)
    assert numbers(other) == [9, 10], "the next clean-up removes the stray"


def test_a_writer_whose_temporary_was_cleaned_up_is_fenced(local: str) -> None:
    sleeper, other = filled(local, 2), opened(local)

    def epoch_and_clean_up() -> None:
        other.append(b"{}", after=2)
        other.clean_up(keep=[3], states=[], generation=0)

    with once_at("log: temporary written", epoch_and_clean_up), pytest.raises(EntryExistsError):
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


def test_temporaries_of_dead_writers_are_cleaned_up_once_their_number_is_taken(local: str) -> None:
    log = filled(local, 3)
    directory = Path(local, "outfall", "sink")
    for number in (1, 3, 4):
        directory.joinpath(f".tmp-{number:020d}-{'0' * 32}").write_bytes(b"half an en")
    # A temporary file of the log that the filesystem writes under a temporary name of its own.
    directory.joinpath(f".tmp-.tmp-{2:020d}-{'0' * 32}-{'1' * 32}").write_bytes(b"fir")
    directory.joinpath(".tmp-notes").write_bytes(b"not ours")
    log.clean_up(keep=[], states=[], generation=0)
    assert [name for name in files(local) if name.startswith(".tmp")] == [f".tmp-{4:020d}-{'0' * 32}", ".tmp-notes"]
    assert numbers(log) == [1, 2, 3]
