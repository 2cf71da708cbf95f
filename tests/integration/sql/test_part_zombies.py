"""`parts=N`: attempts that meet others, replies that are lost, servers that die."""

from __future__ import annotations

import pytest

from outfall.errors import (
    FencedError,
    ReplayDiffersError,
    TransientError,
)
from outfall.testing import LocalDriver
from outfall.testing.tcp_proxy import NetworkFault
from tests.integration.support.sql import ON_EACH, MortalServer, Table, listening, mostly_thorough
from tests.integration.support.sql_parts import one_task, parts_sink, run


def test_an_attempt_that_was_overtaken_gives_up_what_is_there(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    driver = LocalDriver(sink, recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    overtaken: list[int] = []

    def overtake(step: str) -> None:
        if step == "task: before flush" and not overtaken:
            overtaken.append(1)
            one_task(driver, ticket, 0, {"0": [1], "1": [2]})

    with listening(overtake):
        answer = one_task(driver, ticket, 0, {"0": [1], "1": [2]})
    coordinator.finish(ticket, [answer])
    assert target.ids() == [1, 2]


def test_an_attempt_that_was_overtaken_by_half_is_tried_again(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    driver = LocalDriver(sink, recovery)
    ticket = driver.coordinator().begin(0)
    overtaken: list[int] = []

    def overtake(step: str) -> None:
        if step == "task: before flush" and not overtaken:
            overtaken.append(1)
            one_task(driver, ticket, 0, {"0": [1]})

    with listening(overtake), pytest.raises(TransientError, match="has written some of its parts"):
        one_task(driver, ticket, 0, {"0": [1], "1": [2]})
    assert target.ids() == [1]
    one_task(driver, ticket, 0, {"0": [1], "1": [2]}, retries=1)
    assert target.ids() == [1, 2]


# --- zombies


def test_a_task_of_an_older_generation_is_fenced_before_the_newer_one_has_written(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    older = LocalDriver(sink, recovery)
    ticket = older.coordinator().begin(0)
    begun = False

    def begin(step: str) -> None:
        nonlocal begun
        if step == "task: before flush" and not begun:
            begun = True
            LocalDriver(sink, recovery).coordinator().begin(0)

    with listening(begin), pytest.raises(FencedError, match="at generation"):
        one_task(older, ticket, 0, {"0": [1]})
    assert target.ids() == []


def test_a_task_that_wakes_in_a_later_epoch_is_fenced(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    older = LocalDriver(sink, recovery)
    ticket = older.coordinator().begin(0)
    run(sink, recovery, 0, *range(20))
    run(sink, recovery, 1, *range(20, 40))
    with pytest.raises(FencedError):
        one_task(older, ticket, 0, {"0": [1], "1": [2]})
    assert target.ids() == list(range(40))


def test_a_task_that_wakes_after_the_epoch_was_closed_writes_nothing(target: Table, recovery: str) -> None:
    """Its part got no rows from the attempt that counts."""
    driver = LocalDriver(parts_sink(target), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    coordinator.finish(ticket, [one_task(driver, ticket, 0, {"0": [1]})])
    one_task(driver, ticket, 0, {"0": [1]})
    with pytest.raises(ReplayDiffersError, match="closed"):
        one_task(driver, ticket, 0, {"1": [1]})
    assert target.ids() == [1]


def test_a_zombie_of_the_same_generation_finds_its_rows_there(target: Table, recovery: str) -> None:
    driver = LocalDriver(parts_sink(target), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answer = one_task(driver, ticket, 0, {"0": [1, 2]})
    one_task(driver, ticket, 0, {"0": [2, 1]})
    coordinator.finish(ticket, [answer])
    one_task(driver, ticket, 0, {"0": [2, 1]})
    assert target.ids() == [1, 2]


# --- replies that are lost, servers that die


@ON_EACH
def test_a_lost_reply_to_commit_is_settled_by_the_ledger(target: Table, recovery: str) -> None:
    """The proxy lets COMMIT through and swallows what comes back."""
    with target.proxy() as proxy:
        driver = LocalDriver(parts_sink(target, dsn=target.address(proxy.port)), recovery)
        coordinator = driver.coordinator()
        ticket = coordinator.begin(0)
        armed: list[str] = []

        def swallow(step: str) -> None:
            if step == "sql: before COMMIT" and not armed:
                armed.append(step)
                proxy.inject(NetworkFault("reset", "reply", connections=1))

        with listening(swallow):
            answer = one_task(driver, ticket, 0, {"0": [1], "1": [2]})
        assert armed
        result = coordinator.finish(ticket, [answer])
    assert result.counts["commits_settled"] == 1
    assert target.ids() == [1, 2]


def test_a_connection_that_ends_before_commit_leaves_nothing(target: Table, recovery: str) -> None:
    driver = LocalDriver(parts_sink(target), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    ended: list[str] = []

    def end(step: str) -> None:
        if step == "sql: before COMMIT" and not ended:
            ended.append(step)
            target.end_connections()

    with listening(end), pytest.raises(TransientError):
        one_task(driver, ticket, 0, {"0": [1]})
    assert target.ids() == []
    coordinator.finish(ticket, [one_task(driver, ticket, 0, {"0": [1]}, retries=1)])
    assert target.ids() == [1]


@pytest.mark.thorough
@pytest.mark.parametrize("step", mostly_thorough(["sql: copying", "sql: publishing"], ["sql: publishing"]))
def test_a_server_that_is_killed_while_a_task_copies_loses_and_doubles_nothing(
    mortal: MortalServer, mortal_target: Table, recovery: str, step: str
) -> None:
    target = mortal_target
    sink = parts_sink(target, retry_deadline=30)
    run(sink, recovery, 0, 1)
    driver = LocalDriver(sink, recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(1)
    one_task(driver, ticket, 1, {"1": [10]})
    killed: list[str] = []

    def kill(reached: str) -> None:
        if reached == step and not killed:
            killed.append(reached)
            mortal.kill()

    with listening(kill), pytest.raises(TransientError):
        one_task(driver, ticket, 1, {"0": [20, 21]})
    mortal.start()
    answers = [one_task(driver, ticket, 1, {"0": [20, 21], "1": [10]}, retries=1)]
    coordinator.finish(ticket, answers)
    assert target.ids() == [1, 10, 20, 21]


@pytest.mark.thorough
def test_a_server_that_restarts_before_a_task_sends_rows_is_waited_for(
    mortal: MortalServer, mortal_target: Table, recovery: str
) -> None:
    target = mortal_target
    driver = LocalDriver(parts_sink(target, retry_deadline=30), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    mortal.kill()
    mortal.launch()
    coordinator.finish(ticket, [one_task(driver, ticket, 0, {"0": [20, 21], "1": [10]})])
    assert target.ids() == [10, 20, 21]
