"""A role whose timeouts are all short, with a source that is slower than any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outfall.postgres.staging import load
from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import pgbouncer
from tests.integration.support.sql import rows
from tests.integration.support.sql_parts import one_task, parts_sink

TIMEOUTS = {
    "statement_timeout": 0, "idle_in_transaction_session_timeout": 90600, "lock_timeout": 0,
    "idle_session_timeout": 140000, "transaction_timeout": 170000, "tcp_user_timeout": 120000,
}  # fmt: skip


@pytest.fixture
def hurried(dsn: str, role: str) -> str:
    """A user who may do all and has 0.4 s for anything."""
    name = sql.Identifier(role)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER ROLE {} SUPERUSER").format(name))
        for timeout, since in TIMEOUTS.items():
            if connection.info.server_version >= since:
                connection.execute(sql.SQL("ALTER ROLE {} SET {} = 400").format(name, sql.Identifier(timeout)))
    return make_conninfo(dsn, user=role)


def outlast(dsn: str) -> None:
    """Return when the server has ended all that lasts longer than a hurried role may take."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_sleep(0.7)")


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("options", [{}, {"dead_letter_table": "dead"}])
def test_a_slow_source_outlasts_every_timeout_of_its_role(
    hurried: str, dsn: str, recovery: str, options: dict[str, Any], pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a COPY for each batch, the transaction is idle between them, as it is after each 4 MiB of others.
    monkeypatch.setattr(load, "COPY_BYTES", 1)
    target = Target(dsn)
    with pgbouncer(hurried) if pooled else nullcontext(hurried) as through:
        local = LocalDriver(target.sink(dsn=through, **options), recovery)
        coordinator = local.coordinator()
        for epoch in range(2):
            ticket = coordinator.begin(epoch)

            def slow(first: int = 10 * epoch) -> Iterator[Any]:
                for number in range(first, first + 3):
                    yield None, rows(number)
                    outlast(dsn)

            coordinator.finish(ticket, [local.run_task(ticket, epoch, 0, slow())])
    assert target.ids() == [0, 1, 2, 10, 11, 12]


@pytest.mark.thorough
def test_parts_that_are_in_the_table_already_are_checked_after_any_wait(hurried: str, dsn: str, recovery: str) -> None:
    """Their task sends nothing, so its session is idle for as long as it has rows."""
    target = Target(dsn)
    sink = parts_sink(target, 1, dsn=hurried)
    local = LocalDriver(sink, recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    one_task(local, ticket, 0, {"0": [1, 2]})

    def slow() -> Iterator[Any]:
        for number in (1, 2):
            yield "0", rows(number)
            outlast(dsn)

    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, slow(), retries=1)])
    assert target.ids() == [1, 2]
