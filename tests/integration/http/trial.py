"""A server that behaves as told, and a sink that writes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests

from outfall.http import HttpSink
from outfall.testing import LocalDriver
from tests.integration.support.http_receiver import Behaviour, HttpReceiver, Reply, Target

QUICK: dict[str, Any] = {"retry_backoff": 0.001, "max_retry_backoff": 0.01, "max_retries": 8, "retry_budget": 1.0}


class Trial:
    """A target that behaves as told, and a sink that writes to it."""

    def __init__(self, receiver: HttpReceiver, directory: Path) -> None:
        self.receiver = receiver
        self.directory = directory
        self.name = ""

    def run(
        self, behaviour: Behaviour, *, rows: int = 10, path: str = "", keeps_keys: bool = False, **options: Any
    ) -> dict[str, int]:
        """Write one epoch and return its counts."""
        self.name = self.receiver.new_target(behaviour, keeps_keys=keeps_keys)
        sink = HttpSink(self.receiver.url(self.name) + path, **(QUICK | options))
        values = [{"id": number, "text": f"ä{number}"} for number in range(rows)]
        return dict(LocalDriver(sink, str(self.directory / self.name)).run_epoch(0, [values]).counts)

    @property
    def target(self) -> Target:
        return self.receiver.targets[self.name]

    @property
    def ids(self) -> list[int]:
        return [record["id"] for record in self.target.accepted]

    @property
    def keys(self) -> list[str | None]:
        return [request.key for request in self.target.requests]


def first(*replies: Reply) -> Behaviour:
    """Response the first requests so, and accept the others."""
    return lambda request: replies[request.number] if request.number < len(replies) else Reply()


def refused(status: int, **more: Any) -> Reply:
    return Reply(status, accepts=False, **more)


WAYS: list[dict[str, Any]] = [{}, {"compression": "gzip"}, {"session": True}]
"""The three ways of a request: without a thread of its own, with one, and through `requests`."""


def options_of(way: dict[str, Any]) -> dict[str, Any]:
    return {"session": requests.Session()} if "session" in way else way
