"""Tables within other sinks: each gets every row once, whatever the others do."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.errors import TargetLostError
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import BatchingSink, FanOutSink
from tests.unit.support.memory_table import MemoryTableSink, TableLink, TableStore
from tests.unit.support.table_epochs import ids

POINTS = ["after BEGIN", "before PREPARED", "after PREPARED", "table: committed", "after COMMITTED", "before COMPLETED"]


@pytest.fixture
def links() -> dict[str, TableLink]:
    return {name: TableLink(TableStore()) for name in ("a", "b")}


def row(number: int) -> dict[str, Any]:
    return {"id": number, "text": f"{number}"}


def fan_out(links: dict[str, TableLink], recovery: MemoryRecoveryConfig) -> LocalDriver:
    return LocalDriver(
        FanOutSink(**{name: MemoryTableSink(link) for name, link in links.items()}), recovery, clock=FakeClock()
    )


@pytest.mark.parametrize("point", POINTS)
def test_two_tables_get_each_row_once_wherever_drivers_die(links: dict[str, TableLink], point: str) -> None:
    recovery = MemoryRecoveryConfig()
    tasks = [[[row(0)], [row(1)]], [], [], [[row(2)]]]
    for epoch, rows in enumerate(tasks):
        with crash_at(point):
            fan_out(links, recovery).run_epoch(epoch, rows)
        fan_out(links, recovery).run_epoch(epoch, rows)
    for link in links.values():
        assert ids(link) == [0, 1, 2]
        assert set(link.store.paths()) == link.store.named_paths()


def test_one_table_that_lost_an_epoch_stops_both(links: dict[str, TableLink]) -> None:
    recovery = MemoryRecoveryConfig()
    fan_out(links, recovery).run_epoch(0, [[row(0)]])
    links["b"].store.rollback()
    with pytest.raises(TargetLostError):
        fan_out(links, recovery).run_epoch(1, [[row(1)]])
    assert ids(links["a"]) == [0]


def test_a_table_that_is_added_later_gets_the_epochs_from_then_on(links: dict[str, TableLink]) -> None:
    recovery = MemoryRecoveryConfig()
    fan_out({"a": links["a"]}, recovery).run_epoch(0, [[row(0)]])
    for epoch in (1, 2):
        fan_out(links, recovery).run_epoch(epoch, [[row(epoch)]])
    assert ids(links["a"]) == [0, 1, 2]
    assert ids(links["b"]) == [1, 2]


def test_rows_that_are_held_back_come_with_a_later_epoch_or_a_drain(links: dict[str, TableLink]) -> None:
    recovery, link = MemoryRecoveryConfig(), links["a"]

    def driver() -> LocalDriver:
        sink = BatchingSink(MemoryTableSink(link), batch_size=4, flush_interval=3600, across_epochs=True)
        return LocalDriver(sink, recovery, clock=FakeClock())

    for epoch in range(6):
        with crash_at("before PREPARED"):
            driver().run_epoch(epoch, [[row(epoch)]])
        driver().run_epoch(epoch, [[row(epoch)]])
    assert ids(link) == [0, 1, 2, 3]
    driver().drain()
    assert ids(link) == list(range(6))
    driver().run_epoch(6, [[row(6)]])
    driver().drain()
    assert ids(link) == list(range(7))
