"""moto's DynamoDB behind a layer that fails as the real one does: by throttling, in part, and after a write."""

from __future__ import annotations

import io
import json
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.documents import ROOT
from tests.integration.support.servers import OwnServer, free_port, listens
from tests.integration.support.wsgi_server import served

Answer = Callable[..., Any]
_WRITES = {"PutItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"}


@dataclass
class Faults:
    """What goes wrong with writes, each by its share."""

    throttled: float = 0.0
    """Of calls that are refused."""
    lost: float = 0.0
    """Of calls whose answer is lost after the write."""
    unprocessed: float = 0.0
    """Of the requests of a batch that are not processed."""
    without_item: bool = False
    """Whether a failed condition does not return the item, as services do that do not know the parameter."""
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    calls: int = 0
    failed: int = 0


class FaultyService:
    """A WSGI application around moto's."""

    def __init__(self, application: Answer, faults: Faults) -> None:
        self._application = application
        self.faults = faults
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._lock:  # moto's stores are not made for threads
            if action in _WRITES:
                return self._write(action, json.loads(body), environ, start)
            return self._forward(body, environ, start)

    def _write(self, action: str, body: dict[str, Any], environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        faults = self.faults
        faults.calls += 1
        if faults.chance.random() < faults.throttled:
            faults.failed += 1
            return _answer(start, "400 Bad Request", {"__type": "ProvisionedThroughputExceededException"})
        left: dict[str, Any] = {}
        if action == "BatchWriteItem" and faults.unprocessed:
            ((table, requests),) = body["RequestItems"].items()
            kept = [one for one in requests if faults.chance.random() >= faults.unprocessed]
            left = {table: [one for one in requests if one not in kept]} if len(kept) < len(requests) else {}
            faults.failed += len(requests) - len(kept)
            if not kept:
                return _answer(start, "200 OK", {"UnprocessedItems": left})
            body = {"RequestItems": {table: kept}}
        if faults.without_item:
            body.pop("ReturnValuesOnConditionCheckFailure", None)
        got: list[Any] = []
        text = self._forward(json.dumps(body).encode(), environ, lambda *arguments: got.append(arguments))
        if faults.chance.random() < faults.lost:
            faults.failed += 1
            environ["werkzeug.socket"].shutdown(2)
        if left and got[0][0].startswith("200"):
            return _answer(start, "200 OK", json.loads(text[0]) | {"UnprocessedItems": left})
        start(*got[0][:2])
        return text

    def _forward(self, body: bytes, environ: dict[str, Any], start: Answer) -> list[bytes]:
        inner = environ | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return [b"".join(self._application(inner, lambda status, headers, error=None: start(status, headers)))]


def _answer(start: Answer, status: str, body: dict[str, Any]) -> list[bytes]:
    text = json.dumps(body | ({"message": "asked for by the test"} if "__type" in body else {})).encode()
    start(status, [("Content-Type", "application/x-amz-json-1.0"), ("Content-Length", str(len(text)))])
    return [text]


@dataclass
class Dynamo:
    """The emulated service, and a client beside the code under test."""

    endpoint: str
    faults: Faults

    @property
    def client(self) -> Any:
        return boto3.client("dynamodb", endpoint_url=self.endpoint, region_name="us-east-1")

    def new_table(self, name: str, ttl: str | None = None, **keys: str) -> str:
        """Create a table with these keys: `id="N"` or `id="S", at="N"`."""
        kinds = keys or {"id": "N"}
        self.client.create_table(
            TableName=name,
            KeySchema=[
                {"AttributeName": key, "KeyType": "RANGE" if number else "HASH"} for number, key in enumerate(kinds)
            ],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind in kinds.items()],
            BillingMode="PAY_PER_REQUEST",
        )
        if ttl is not None:
            self.client.update_time_to_live(
                TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": ttl}
            )
        return name

    def raw(self, table: str) -> list[dict[str, Any]]:
        """Every item of a table, as it is stored."""
        pages = self.client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Every row, as a reader sees it that leaves out tombstones, without the version."""
        plain = TypeDeserializer()
        return [
            {name: plain.deserialize(value) for name, value in item.items() if name != "_outfall"}
            for item in self.raw(table)
            if "_outfall_deleted" not in item
        ]


@contextmanager
def dynamo_process(folder: Path, *, throttled: float, lost: float) -> Iterator[Dynamo]:
    """Run the service in a process of its own: drivers that tests fork would inherit the locks of its threads."""
    port = free_port()
    command = [sys.executable, "-m", __name__, str(port), str(throttled), str(lost)]
    server = OwnServer(command, folder / "server-log", lambda: listens(port), PYTHONPATH=str(ROOT))
    server.start()
    try:
        yield Dynamo(f"http://127.0.0.1:{port}", Faults())
    finally:
        server.kill()


@contextmanager
def dynamo_server() -> Iterator[Dynamo]:
    """Start the service on a free port."""
    faults = Faults()
    application = FaultyService(DomainDispatcherApplication(create_backend_app), faults)
    with served(application) as url:
        yield Dynamo(url, faults)


if __name__ == "__main__":
    given = Faults(throttled=float(sys.argv[2]), lost=float(sys.argv[3]))
    outer = FaultyService(DomainDispatcherApplication(create_backend_app), given)
    make_server("127.0.0.1", int(sys.argv[1]), outer, threaded=True).serve_forever()
