"""What `HttpSink` claims, against a server that keeps idempotency keys and one that does not."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.http import HttpSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support.http_receiver import accepted
from tests.one_each import thorough

SECRET = "hunter2-and-more"

MUTE = "an HTTP server cannot be asked what it has accepted, so that nothing is seen of what a lost log was about"


UNDER_WAY = "a row is on its way as soon as it is written, so that it may land while its task is being closed"


class Posts(SinkHarness):
    """At least once: arrays of records, to a server that takes all of them."""

    server: str
    secrets = (SECRET,)
    settings: dict[str, Any] = {}
    keeps = "all"
    not_claimed = {"lost_log": MUTE, "rewound_log": MUTE}

    def new_target(self, directory: Path) -> Any:
        return f"{self.server}/{self.keeps}-{secrets.token_hex(8)}"

    def make_sink(self, target: Any) -> Any:
        # Few connections: aiohttp keeps ten kilobytes for each, which would hide what the sink keeps.
        return HttpSink(target, bearer_token=SECRET, max_in_flight_requests=5, **self.settings)

    def read(self, target: Any) -> Iterable[Any]:
        return accepted(target)


class ByColumn(Posts):
    not_claimed = Posts.not_claimed | {"close_publishes_nothing": UNDER_WAY}
    settings = {"body": "record", "idempotency": "row", "key_column": "id"}
    keeps = "keys"


class ByContent(Posts):
    not_claimed = Posts.not_claimed | {"close_publishes_nothing": UNDER_WAY}
    settings = {"body": "record", "idempotency": "content"}
    keeps = "keys"


class ByItem(Posts):
    settings = {"idempotency": "item", "key_column": "id"}
    keeps = "items"


SHORT = [
    "declared_guarantee", "one_epoch", "several_epochs", "empty_epochs_and_tasks", "counts_are_facts",
    "replay_of_a_completed_epoch", "replay_of_a_lost_epoch", "two_attempts_finish",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("harness", [Posts, ByColumn])
def test_columns_and_wrappers(harness: type[Posts], receiver_url: str, tmp_path: Path) -> None:
    made = harness()
    made.server = receiver_url
    report = run_conformance(made, tmp_path, checks=["changed_layout", "in_wrappers"])
    assert report.passed, report


@pytest.mark.parametrize("harness", [ByContent, *map(thorough, [ByItem, Posts, ByColumn])])
def test_in_short(harness: type[Posts], receiver_url: str, tmp_path: Path) -> None:
    made = harness()
    made.server = receiver_url
    report = run_conformance(made, tmp_path, checks=SHORT)
    assert report.passed, report


class Served:
    """For the whole suite."""

    @pytest.fixture(autouse=True)
    def _server(self, receiver_url: str) -> None:
        self.server = receiver_url


@pytest.mark.long
class TestAtLeastOnce(Served, Posts, SinkConformance):
    pass


@pytest.mark.long
class TestByColumn(Served, ByColumn, SinkConformance):
    pass


@pytest.mark.long
class TestByContent(Served, ByContent, SinkConformance):
    pass


@pytest.mark.long
class TestByItem(Served, ByItem, SinkConformance):
    pass
