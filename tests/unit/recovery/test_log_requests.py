"""What an epoch asks of an object store for its log, and what it must find out nevertheless."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import closing
from typing import Any, ClassVar

import pytest
from fsspec.registry import _registry

from outfall.errors import FencedError, RecordError
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.step import RunRegistry
from outfall.recovery import CheckpointRecoveryConfig, EntryExistsError, LogEntry, RecoveryConfig
from outfall.recovery.entries import Entry, decode_entry
from outfall.recovery.history import KEPT_EPOCHS, history
from outfall.testing import LocalDriver
from outfall.testing.minimal_sinks import MemoryTarget, PublishingSink
from outfall.testing.recovery_contract import once_at
from tests.unit.recovery.test_object_store_log import Store
from tests.unit.support.journals import entries
from tests.unit.support.logs import files, filled, numbers, opened


class Counting(Store):
    """Counts what a store would be paid for."""

    requests: ClassVar[Counter[str]] = Counter()

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self.requests["list"] += 1
        return super().ls(path, detail=detail, **options)

    def cat_file(self, path: str, *options: Any, **more: Any) -> Any:
        self.requests["get"] += 1
        return super().cat_file(path, *options, **more)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.requests["put"] += 1
        super().pipe_file(path, value, mode=mode, **options)

    def rm_file(self, path: str) -> None:
        self.requests["delete"] += 1
        super().rm_file(path)


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> RecoveryConfig:
    monkeypatch.setitem(_registry, "abfs", Counting)
    return CheckpointRecoveryConfig(f"abfs://container@account/{uuid.uuid4().hex}")


class SourceDriver:
    """`format("outfall")`: one process begins epochs, and another one finishes them."""

    def __init__(self, recovery: RecoveryConfig) -> None:
        self._sink = PublishingSink(MemoryTarget())
        self._recovery = recovery
        self._plans, self._commits = RunRegistry(), RunRegistry()

    def _coordinator(self, registry: RunRegistry) -> EpochCoordinator:
        return EpochCoordinator(self._sink, "sink", self._recovery, registry=registry)

    def run_epoch(self, epoch: int, tasks: list[list[Any]]) -> None:
        with closing(self._coordinator(self._plans)) as coordinator:
            ticket = coordinator.begin(None)
        responses = LocalDriver(self._sink, self._recovery).run_tasks(ticket, epoch, tasks)
        with closing(self._coordinator(self._commits)) as coordinator:
            coordinator.finish(coordinator.resume(responses), responses)


def steady(driver: LocalDriver | SourceDriver) -> Counter[str]:
    """The requests of an epoch, the same in each of several ones."""
    for epoch in range(KEPT_EPOCHS + 5):
        driver.run_epoch(epoch, [[epoch]])
    found = []
    for epoch in range(KEPT_EPOCHS + 5, KEPT_EPOCHS + 8):
        Counting.requests.clear()
        driver.run_epoch(epoch, [[epoch]])
        found.append(Counter(Counting.requests))
    assert found[0] == found[1] == found[2]
    return found[0]


def test_an_epoch_lists_the_log_once_to_read_it_and_once_for_each_entry(recovery: RecoveryConfig) -> None:
    driver = LocalDriver(PublishingSink(MemoryTarget()), recovery)
    assert steady(driver) == {"list": 1 + 4, "get": 1, "put": 4, "delete": 4}
    assert len(history(recovery)) == KEPT_EPOCHS


def test_an_epoch_that_two_processes_run_is_read_by_each_of_them(recovery: RecoveryConfig) -> None:
    # Each loads what the other one has appended since: three entries and the BEGIN.
    assert steady(SourceDriver(recovery)) == {"list": 2 + 4, "get": 2 + 3 + 1, "put": 4, "delete": 4}


def test_states_cost_one_more_listing(recovery: RecoveryConfig) -> None:
    with closing(recovery.open("sink")) as log:
        log.write_state("kept", b"", generation=10**9)
    assert steady(LocalDriver(PublishingSink(MemoryTarget()), recovery))["list"] == 1 + 4 + 1


def test_entries_are_decoded_once(recovery: RecoveryConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, other = (LocalDriver(PublishingSink(MemoryTarget()), recovery) for _ in range(2))
    driver.run_epoch(0, [[0]])
    decoded: list[int] = []

    def noted(raw: LogEntry, step_id: str) -> Entry:
        decoded.append(raw.number)
        return decode_entry(raw, step_id)

    monkeypatch.setattr("outfall.protocol.journal.decode_entry", noted)
    driver.run_epoch(1, [[1]])
    assert decoded == []
    other.run_epoch(2, [[2]])
    assert decoded == [4, 5, 6, 7, 8], "of another process, which knows none"


def test_a_log_that_was_replaced_by_one_with_as_many_entries_is_read_anew(recovery: RecoveryConfig) -> None:
    sink, process = PublishingSink(MemoryTarget()), RunRegistry()
    for registry in (process, RunRegistry()):
        recovery.open("sink").erase()
        with closing(EpochCoordinator(sink, "sink", recovery, registry=registry)) as coordinator:
            coordinator.begin(0)
    with closing(EpochCoordinator(sink, "sink", recovery, registry=process)) as coordinator:
        assert coordinator.begin(0).incarnation == entries(recovery)[0]["incarnation"]


def test_a_writer_that_has_seen_an_old_end_is_fenced_after_its_entry_was_created(location: str) -> None:
    sleeper, other = filled(location, 2), opened(location)
    for after in range(2, 9):
        other.append(b"{}", after=after)
    other.clean_up(keep=[8, 9], states=[], generation=0)
    with pytest.raises(EntryExistsError):
        sleeper.append(b"stray", after=2)
    assert numbers(opened(location), last=2) == [8, 9]
    assert other.append(b"{}", after=9) == 10


@pytest.mark.parametrize("left", [0, 1])
def test_an_entry_in_a_log_that_was_replaced_by_an_older_one_is_taken_back(location: str, left: int) -> None:
    writer, other = filled(location, 3), filled(f"{location}/older", left)

    def replace() -> None:
        opened(location).erase()
        opened(location).restore(other.read(), {})

    with once_at("log: newest checked", replace), pytest.raises(RecordError, match="emptied or replaced"):
        writer.append(b"{}", after=3)
    assert numbers(opened(location)) == list(range(1, left + 1))


def test_a_clean_up_lists_what_its_writer_has_not_seen(location: str) -> None:
    log, other = filled(location, 2), opened(location)
    for after in range(2, 6):
        other.append(b"{}", after=after)
    log.clean_up(keep=[6], states=[], generation=0)
    assert files(location) == [f"{6:020d}.json"]


@pytest.mark.parametrize("has", ["read", "appended"])
@pytest.mark.parametrize("keep", [[9], [2, 9]])
def test_an_entry_in_a_log_that_was_begun_anew_is_taken_back(location: str, keep: list[int], has: str) -> None:
    sleeper, other = filled(location, 2), opened(location)
    if has == "read":
        sleeper = opened(location)
        sleeper.read()
    other.erase()
    for after in range(9):
        other.append(b"{}", after=after)
    other.clean_up(keep=keep, states=[], generation=0)
    with pytest.raises(EntryExistsError):
        sleeper.append(b"of the log before", after=2)
    assert numbers(opened(location)) == keep


def test_a_driver_that_outlived_its_log_leaves_nothing_that_stops_the_next_one(recovery: RecoveryConfig) -> None:
    sink = PublishingSink(MemoryTarget())
    older, newer = (LocalDriver(sink, recovery) for _ in range(2))
    older.run_epoch(0, [[0]])
    coordinator = older.coordinator()
    ticket = coordinator.begin(1)
    recovery.open("sink").erase()
    for epoch in range(3):
        newer.run_epoch(epoch, [[epoch]])
    with pytest.raises(FencedError):
        coordinator.finish(ticket, older.run_tasks(ticket, 1, [[1]]))
    newer.run_epoch(3, [[3]])
    assert LocalDriver(sink, recovery).run_epoch(3, [[3]]).skipped
