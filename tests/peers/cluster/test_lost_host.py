"""What a host that is cut off for good leaves open on the servers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server
from tests.integration.support.waiting import until
from tests.peers.support import lost_task
from tests.peers.support.hosts import Network, network

STORED = "SELECT pg_relation_size('t') > 0"


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network("as") as made:
        yield made


@pytest.fixture(scope="module")
def server(net: Network) -> Iterator[Server]:
    """PostgreSQL on a host of its own."""
    folder = net.folder / "postgres"
    folder.mkdir()
    host = net.hosts["s"]
    with host.entered():
        running = Server(folder, host=host.address)
        running.start()
    yield running
    running.stop()


def test_a_task_gets_the_keys_that_one_on_a_lost_host_held(net: Network, server: Server, tmp_path: Path) -> None:
    target = Target(server.new_database(), "CREATE TABLE t (part int, part_offset bigint, id bigint, name text,"
                    " PRIMARY KEY (part, part_offset))")  # fmt: skip
    options = {"parts": 1, "part_column": "part", "part_offset_column": "part_offset", "statement_timeout": 30}
    dsn = make_conninfo(target.dsn, sslmode="disable")
    # Noticed after seconds and not after a minute and a half.
    quick = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 4000}
    log = str(tmp_path / "log")
    driver = LocalDriver(target.sink(dsn=dsn, **options), log)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    given = tmp_path / "task"
    given.write_bytes(pickle.dumps((target.sink(dsn=make_conninfo(dsn, **quick), **options), log, ticket)))
    host = net.hosts["a"]
    with host.entered():
        task = subprocess.Popen(
            [sys.executable, str(lost_task.__file__), str(given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    try:
        assert task.stdout is not None
        assert task.stdout.readline() == b"copying\n"
        until(lambda: target.run(STORED) == [(True,)], "rows with keys", 30)
        net.cut(host)
        rows = [{"id": number, "name": "n"} for number in range(lost_task.ROWS)]
        coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, [("0", rows)], retries=1, attempt=1)])
    finally:
        net.heal(host)
        task.kill()
        task.wait()
    assert target.ids() == list(range(lost_task.ROWS))
