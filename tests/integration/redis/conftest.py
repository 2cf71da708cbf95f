"""One server for the whole run, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def server_of_the_run() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(server_of_the_run: RedisServer) -> RedisServer:
    server_of_the_run.client().flushall()
    return server_of_the_run
