"""Wrappers around wrappers around the sinks that upsert by key: rows arrive once, or the combination is refused."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from outfall.dynamodb import DynamoDBSink
from outfall.opensearch import OpenSearchSink
from outfall.redis import RedisSink
from tests.combinations import Place, check, parameters
from tests.integration.dynamodb.server import Dynamo, dynamo_server
from tests.integration.opensearch.model import Cluster, model_process
from tests.integration.support.redis_server import RedisServer, redis_server, rows_of


class Servers:
    """Servers that are started when they are needed, and run until the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._started: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        if name not in self._started:
            makers: dict[str, Callable[[], Any]] = {
                "redis": redis_server,
                "dynamodb": dynamo_server,
                "opensearch": lambda: model_process(self._folder),
            }
            self._started[name] = self._stack.enter_context(makers[name]())
        return self._started[name]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "outfall")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "outfall-secret")
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


class Keyed(Place):
    """A target of its own on a shared server. A dead letter is found by its row, which each has once."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.name = f"t-{secrets.token_hex(8)}"

    @property
    def key(self) -> str:
        return "row" if self.letters else "id"


class Hashes(Keyed):
    server: RedisServer

    def sink(self) -> Any:
        return RedisSink(self.server.url, f"{self.name}:{{{self.key}}}")

    def read(self) -> Iterable[Mapping[str, Any]]:
        found = rows_of(self.server.client(), f"{self.name}:*").values()
        return found if self.letters else [row | {"id": int(row["id"])} for row in found]


class Items(Keyed):
    server: Dynamo
    _made = False

    def sink(self) -> Any:
        if not self._made:
            self.server.new_table(self.name, **{self.key: "S" if self.letters else "N"})
            self._made = True
        return DynamoDBSink(self.name, endpoint_url=self.server.endpoint, region="us-east-1")

    def read(self) -> Iterable[Mapping[str, Any]]:
        return self.server.rows(self.name)


class Documents(Keyed):
    server: Cluster

    def sink(self) -> Any:
        return OpenSearchSink(self.server.url, index=self.name, key_columns=self.key)

    def read(self) -> Iterable[Mapping[str, Any]]:
        return self.server.rows(self.name).values()


PLACES: dict[str, Callable[[Any], Keyed]] = {"redis": Hashes, "dynamodb": Items, "opensearch": Documents}


@pytest.mark.parametrize(("wrappers", "sink", "word"), parameters(PLACES))
def test_rows_arrive_once_or_the_combination_is_refused(
    wrappers: tuple[str, ...], sink: str, word: str, servers: Servers
) -> None:
    check(wrappers, PLACES[sink](servers.get(sink)), word)
