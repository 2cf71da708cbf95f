"""`RedisSink` is effectively once, as it says: the conformance suite does not refute it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.redis import RedisSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support.redis_server import RedisServer, rows_of
from tests.one_each import thorough

PASSWORD = "hunter2-and-more"


class Rows(SinkHarness):
    server: RedisServer
    secrets = (PASSWORD,)
    not_claimed = {
        "lost_log": "a new checkpoint writes over what is there, with higher versions",
        "equal_rows": "one row is kept per key",
        "restored_target": "a copy that was taken within the last completed epoch is not told apart",
        "close_publishes_nothing": "a row is on its way as soon as it is written",
    }

    def new_target(self, directory: Path) -> Any:
        return secrets.token_hex(8)

    def make_sink(self, target: Any) -> Any:
        return RedisSink(
            self.server.url,
            f"{target}:{{id}}",
            layout="json",
            username="outfall",
            password=PASSWORD,
            max_retries=3,
            retry_deadline=2,
        )

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(text) for text in rows_of(self.server.client(), f"{target}:*").values()]

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}

    def lose_target(self, target: Any) -> None:
        self.server.client().flushall()

    def save_target(self, target: Any) -> Callable[[], None]:
        client = self.server.client()
        saved = {key: client.get(key) for key in client.scan_iter(count=1000)}

        def restore() -> None:
            client.flushall()
            for key, value in saved.items():
                client.set(key, value)

        return restore


SHORT = ["one_epoch", "replay_of_a_lost_epoch"]
MORE = [
    "declared_guarantee",
    "several_epochs",
    "counts_are_facts",
    "replay_of_a_completed_epoch",
    "two_attempts_finish",
    "lost_target",
    "no_secret_comes_out",
    "changed_layout",
    "null_in_a_key",
    "in_wrappers",
]


@pytest.fixture(autouse=True)
def user(server: RedisServer) -> None:
    server.client().acl_setuser(
        "outfall", enabled=True, reset=True, passwords=[f"+{PASSWORD}"], keys=["*"],
        categories=["+@read", "+@write", "+@scripting", "+@connection"], commands=["+info", "+config|get"],
    )  # fmt: skip


@pytest.mark.parametrize("checks", [SHORT, thorough(MORE)], ids=["short", "more"])
def test_effectively_once_in_short(server: RedisServer, tmp_path: Path, checks: list[str]) -> None:
    harness = Rows()
    harness.server = server
    report = run_conformance(harness, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.long
class TestRows(Rows, SinkConformance):
    @pytest.fixture(autouse=True)
    def servers(self, server: RedisServer) -> None:
        self.server = server
