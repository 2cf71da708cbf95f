"""The conformance suite's view of `OpenSearchSink`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from outfall.opensearch import OpenSearchSink
from outfall.testing import SinkHarness
from tests.integration.opensearch.model import Cluster


class Documents(SinkHarness):
    cluster: Cluster
    not_claimed = {
        "lost_log": "a new checkpoint writes over what is there, with higher versions",
        "equal_rows": "one row is kept per key",
        "restored_target": "a copy that was taken within the last completed epoch is not told apart",
        "close_publishes_nothing": "a row is on its way as soon as it is written",
    }

    def new_target(self, directory: Path) -> Any:
        return f"c-{secrets.token_hex(6)}"

    def make_sink(self, target: Any) -> Any:
        return OpenSearchSink(
            self.cluster.url, index=target, key_columns="id", retry_backoff=0.005, max_retries=3, retry_deadline=2
        )

    def read(self, target: Any) -> Iterable[Any]:
        return self.cluster.rows(target).values()

    def similar_rows(self) -> Sequence[Any]:
        return [{"id": key} for key in ("a", "a:b", "a%3Ab", "A")]

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}

    def lose_target(self, target: Any) -> None:
        for index in (target, "outfall-records"):
            self.cluster.ask("DELETE", f"/{index}")
