"""moto's Kinesis, Firehose and S3 behind a layer that fails as the real ones do: in part, by throttling, after a write.

moto checks the limits of each call and never fails in part.
"""

from __future__ import annotations

import base64
import io
import json
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from tests.integration.support.wsgi_server import served

Answer = Callable[..., Any]

_ANSWERS = {"PutRecords": "Records", "PutRecordBatch": "RequestResponses"}
_COUNTS = {"PutRecords": "FailedRecordCount", "PutRecordBatch": "FailedPutCount"}
_THROTTLED = {"PutRecords": "ProvisionedThroughputExceededException", "PutRecordBatch": "ServiceUnavailableException"}


@dataclass
class Faults:
    """What goes wrong, each by its share. Changed between requests only."""

    entries: float = 0.0
    """Of entries that are refused one by one."""
    throttled: float = 0.0
    """Of calls that are refused as a whole."""
    lost: float = 0.0
    """Of calls whose answer is lost after the write."""
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    calls: int = 0
    refused: int = 0
    in_lost_calls: Counter[bytes] = field(default_factory=Counter)
    """The data that was written by calls whose answer was lost."""


class FaultyService:
    """A WSGI application around moto's."""

    def __init__(self, application: Answer, faults: Faults) -> None:
        self._application = application
        self.faults = faults
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        if action not in _ANSWERS:
            return list(self._application(environ, start))
        body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with self._lock:  # moto's stores are not made for threads
            return self._put(action, body, environ, start)

    def _put(self, action: str, body: dict[str, Any], environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        faults = self.faults
        faults.calls += 1
        if faults.chance.random() < faults.throttled:
            return _error(start, _THROTTLED[action])
        records = body["Records"]
        kept = [record for record in records if faults.chance.random() >= faults.entries]
        faults.refused += len(records) - len(kept)
        status, headers, answer = "200 OK", [("Content-Type", "application/x-amz-json-1.1")], []
        if kept:
            status, headers, text = self._forward(body | {"Records": kept}, environ)
            if not status.startswith("200"):
                start(status, headers)
                return [text]
            answer = json.loads(text)[_ANSWERS[action]]
        if faults.chance.random() < faults.lost:
            faults.in_lost_calls.update(base64.b64decode(record["Data"]) for record in kept)
            environ["werkzeug.socket"].shutdown(2)
            return _error(start, "InternalFailure")
        written = iter(answer)
        passed = {id(record) for record in kept}
        refusal = {"ErrorCode": _THROTTLED[action], "ErrorMessage": "Rate exceeded for shard."}
        merged = [next(written) if id(record) in passed else refusal for record in records]
        text = json.dumps({_ANSWERS[action]: merged, _COUNTS[action]: len(records) - len(kept)}).encode()
        start("200 OK", [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(text)))])
        return [text]

    def _forward(self, body: dict[str, Any], environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        data = json.dumps(body).encode()
        got: list[Any] = []
        inner = environ | {"wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}
        text = b"".join(self._application(inner, lambda status, headers, error=None: got.append((status, headers))))
        return got[0][0], got[0][1], text


def _error(start: Answer, code: str) -> list[bytes]:
    text = json.dumps({"__type": code, "message": "asked for by the test"}).encode()
    start("400 Bad Request", [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(text)))])
    return [text]


_DELIVERY_STREAMS = 40
"""An account may have 50. Tests use the newest ones."""


@dataclass
class Aws:
    """The emulated services, and clients beside the code under test."""

    endpoint: str
    faults: Faults
    _clients: dict[str, Any] = field(default_factory=dict)
    _delivery_streams: deque[str] = field(default_factory=deque)

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = boto3.client(service, endpoint_url=self.endpoint, region_name="us-east-1")
        return self._clients[service]

    def new_stream(self, name: str, shards: int = 2) -> str:
        self.client("kinesis").create_stream(StreamName=name, ShardCount=shards)
        return name

    def records(self, stream: str) -> list[dict[str, Any]]:
        """Every record of a stream, shard by shard in its order."""
        client = self.client("kinesis")
        found: list[dict[str, Any]] = []
        for shard in client.describe_stream(StreamName=stream)["StreamDescription"]["Shards"]:
            place = client.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while True:
                answer = client.get_records(ShardIterator=place, Limit=10_000)
                found += answer["Records"]
                place = answer["NextShardIterator"]
                if not answer["Records"]:
                    break
        return found

    def new_delivery_stream(self, name: str) -> str:
        if len(self._delivery_streams) == _DELIVERY_STREAMS:
            self.client("firehose").delete_delivery_stream(DeliveryStreamName=self._delivery_streams.popleft())
        self._delivery_streams.append(name)
        self.client("s3").create_bucket(Bucket=name)
        self.client("firehose").create_delivery_stream(
            DeliveryStreamName=name,
            ExtendedS3DestinationConfiguration={
                "BucketARN": f"arn:aws:s3:::{name}",
                "RoleARN": "arn:aws:iam::123456789012:role/test",
            },
        )
        return name

    def lines(self, delivery_stream: str) -> list[bytes]:
        """Every line that was delivered."""
        client = self.client("s3")
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=delivery_stream)
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        bodies = [client.get_object(Bucket=delivery_stream, Key=key)["Body"].read() for key in keys]
        return [line for body in bodies for line in body.splitlines()]


@contextmanager
def aws_server() -> Iterator[Aws]:
    """Start the services on a free port."""
    faults = Faults()
    application = FaultyService(DomainDispatcherApplication(create_backend_app), faults)
    with served(application) as url:
        yield Aws(url, faults)
