"""How often a steady epoch waits for the server: the cost of an epoch on a network, whatever its rows."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.testing import LocalDriver
from outfall.testing.tcp_proxy import TcpProxy
from tests.integration.support.sql import KEYED, ON_EACH, TABLE, UPSERT, Make, rows, run

pytestmark = ON_EACH


class _Counting(LocalDriver):
    """A driver that counts the round trips of its tasks through a proxy."""

    def __init__(self, sink: Any, recovery: str, proxy: TcpProxy) -> None:
        super().__init__(sink, recovery)
        self._proxy = proxy
        self.of_tasks: list[int] = []

    def run_task(self, *given: Any, **more: Any) -> Any:
        before = self._proxy.round_trips
        response = super().run_task(*given, **more)
        self.of_tasks.append(self._proxy.round_trips - before)
        return response


def _counts(make: Make, recovery: str, ddl: str, **options: Any) -> tuple[int, list[int]]:
    """Return the round trips of the driver, and those of each task, in the fourth epoch."""
    target, some = make(ddl), rows(1, 2, 3, 4)
    with target.proxy() as proxy:
        driver = _Counting(target.sink(dsn=target.address(proxy.port), **options), recovery, proxy)
        for epoch in range(3):
            driver.run_epoch(epoch, [some[:2], some[2:]])
        before, connections, driver.of_tasks = proxy.round_trips, proxy.connections, []
        driver.run_epoch(3, [some[:2], some[2:]])
        assert proxy.connections == connections, "a steady epoch opens no connection"
        return proxy.round_trips - before - sum(driver.of_tasks), driver.of_tasks


def test_a_steady_epoch_waits_for_the_server_rarely(make: Make, recovery: str) -> None:
    of_driver, of_tasks = _counts(make, recovery, TABLE)
    assert (of_driver <= 11, of_tasks) == (True, [4, 4]), of_driver


def test_a_steady_epoch_of_an_upsert_waits_once_more(make: Make, recovery: str) -> None:
    of_driver, of_tasks = _counts(make, recovery, KEYED, **UPSERT)
    assert (of_driver <= 12, of_tasks) == (True, [4, 4]), of_driver


@pytest.mark.thorough
def test_a_steady_epoch_of_many_tables_waits_as_rarely_as_one_of_few(make: Make, recovery: str) -> None:
    """Names, columns, locks and moves of all tables are asked for and sent together."""

    def trips(number: int) -> tuple[int, list[int]]:
        named = [f"many{each}" for each in range(number)]
        target = make(TABLE)
        for name in named:
            target.run(TABLE.replace(" t ", f" {name} "))
        some = [{"id": at, "name": "a", "place": name} for at, name in enumerate(named)]
        options = {"table": None, "table_column": "place", "allowed_tables": "many*"}
        with target.proxy() as proxy:
            driver = _Counting(target.sink(dsn=target.address(proxy.port), **options), f"{recovery}-{number}", proxy)
            for epoch in range(3):
                driver.run_epoch(epoch, [some, some])
            before, driver.of_tasks = proxy.round_trips, []
            driver.run_epoch(3, [some, some])
            return proxy.round_trips - before - sum(driver.of_tasks), driver.of_tasks

    few, many = trips(3), trips(60)
    assert many == few


@pytest.mark.thorough
def test_a_steady_epoch_waits_only_for_the_layouts_that_it_touches(make: Make, recovery: str) -> None:
    def trips(number: int) -> int:
        target = make("CREATE TABLE many0 (id bigint, name varchar(9))")
        for each in range(1, number):
            target.run(f"CREATE TABLE many{each} (id bigint, name varchar({each + 9}))")
        every = [{"id": 1, "name": "a", "place": f"many{each}"} for each in range(number)]
        options = {"table": None, "table_column": "place", "allowed_tables": "many*"}
        with target.proxy() as proxy:
            driver = LocalDriver(target.sink(dsn=target.address(proxy.port), **options), f"{recovery}-{number}")
            driver.run_epoch(0, [every])
            for epoch in range(1, 4):
                before = proxy.round_trips
                driver.run_epoch(epoch, [every[:1]])
            return proxy.round_trips - before

    assert trips(5) == trips(1)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, UPSERT, {"write_mode": "upsert"}], ids=str)
def test_the_first_epoch_of_many_tables_waits_as_rarely_as_that_of_few(
    make: Make, recovery: str, options: dict[str, Any]
) -> None:
    target = make(KEYED)

    def trips(number: int) -> int:
        named = [f"m{number}_{each}" for each in range(number)]
        for name in named:
            target.run(KEYED.replace(" t ", f" {name} "))
        with target.proxy() as proxy:
            sink = target.sink(
                dsn=target.address(proxy.port),
                table=None,
                table_column="place",
                allowed_tables=f"m{number}_*",
                **options,
            )
            run(sink, f"{recovery}-{number}", 0, [{"place": name, "id": 1, "version": 1} for name in named])
        # If this step had written under another checkpoint, each table would be looked up.
        target.run(f"DELETE FROM {target.own('ledger')}")
        return proxy.round_trips

    trips(2)  # creates the sink's own tables
    # On MySQL 9.7 one more was counted for thirty tables, whose answers are longer.
    assert trips(12) <= trips(3) + 1
