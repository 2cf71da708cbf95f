"""One HTTP server for the tests of the HTTP sink, each with targets of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outfall.http.client import close_idle_connections
from tests.integration.http.trial import Trial
from tests.integration.support.http_receiver import HttpReceiver, receiver_process


@pytest.fixture(scope="session")
def shared_receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver().running() as receiver:
        yield receiver


@pytest.fixture
def receiver(shared_receiver: HttpReceiver) -> Iterator[HttpReceiver]:
    """The server; no connection of an earlier test is used again."""
    close_idle_connections()
    yield shared_receiver
    close_idle_connections()


@pytest.fixture(scope="session")
def receiver_url() -> Iterator[str]:
    """A server in a process of its own."""
    with receiver_process() as url:
        yield url


@pytest.fixture
def trial(receiver: HttpReceiver, tmp_path: Path) -> Trial:
    return Trial(receiver, tmp_path)
