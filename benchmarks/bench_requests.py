"""Throughput of the sinks whose writes carry versions, beside the client library's own way to write many rows.

    python -m benchmarks.bench_requests --rows 50000 --pairs 3 [--only redis]

Runs on the local engine, without Spark, in one process. Each server runs in a process of its own. In each pair the
peer, the sink without versions and the sink with versions write the same rows in turn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import boto3
import pyarrow as pa
import redis
from opensearchpy import OpenSearch
from opensearchpy.helpers import parallel_bulk

from benchmarks.common import Given, finish, known, machine, parse
from benchmarks.results import Figure, Line, Result, now
from outfall.capabilities import WriterInitContext
from outfall.dynamodb import DynamoDBSink
from outfall.opensearch import OpenSearchSink
from outfall.redis import RedisSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.testing.benchmark.rows import Scratch
from tests.integration.opensearch.model import model_process
from tests.integration.support.redis_server import redis_server

DEFAULT = Given(rows=50_000, pairs=3)
PLAIN, VERSIONED, TOGETHER = "without versions", "with versions", "with versions, in transactions"
Write = Callable[[list[dict[str, Any]]], None]


@contextmanager
def redis_ways() -> Iterator[Mapping[str, Write]]:
    """Hashes, by the client's pipeline of 500 rows and by the sink."""
    with redis_server("--appendonly", "no") as server:

        def peer(rows: list[dict[str, Any]]) -> None:
            client: Any = redis.Redis(port=server.port)
            for start in range(0, len(rows), 500):
                with client.pipeline(transaction=False) as pipeline:
                    for row in rows[start : start + 500]:
                        pipeline.delete(f"p:{row['id']}")
                        pipeline.hset(f"p:{row['id']}", mapping=row)
                    pipeline.execute()

        yield {
            "redis-py pipeline": peer,
            PLAIN: lambda rows: written(RedisSink(server.url, "p:{id}", versions=False), rows),
            VERSIONED: lambda rows: written(RedisSink(server.url, "v:{id}"), rows),
        }


class Canned(BaseHTTPRequestHandler):
    """Answers each write of DynamoDB at once, and keeps nothing but the records."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one segment per answer, or the kernel delays the second one
    records: ClassVar[dict[str, Any]] = {}
    keys: ClassVar[list[dict[str, str]]] = [{"AttributeName": "id", "KeyType": "HASH"}]

    def do_POST(self) -> None:
        """Answer a call by its name."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        action = self.headers["X-Amz-Target"].rpartition(".")[2]
        answer: dict[str, Any] = {}
        if action == "DescribeTable":
            types = [{"AttributeName": "id", "AttributeType": "N"}]
            answer = {"Table": {"KeySchema": self.keys, "AttributeDefinitions": types, "TableStatus": "ACTIVE"}}
        elif action == "BatchWriteItem":
            answer = {"UnprocessedItems": {}}
        elif action == "GetItem":
            found = self.records.get(json.dumps(body["Key"]))
            answer = {} if found is None else {"Item": found}
        elif "name" in body.get("Item", {}):
            self.records[json.dumps({"name": body["Item"]["name"]})] = body["Item"]
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _canned(port: Any) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Canned)
    port.put(server.server_port)
    server.serve_forever()


@contextmanager
def dynamodb_ways() -> Iterator[Mapping[str, Write]]:
    """Items, by boto3's `batch_writer` and by the sink, against canned answers from a process of its own."""
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")
    port: Any = multiprocessing.Queue()
    service = multiprocessing.Process(target=_canned, args=(port,), daemon=True)
    service.start()
    url = f"http://127.0.0.1:{port.get()}"
    try:

        def peer(rows: list[dict[str, Any]]) -> None:
            table = boto3.resource("dynamodb", endpoint_url=url).Table("table")
            with table.batch_writer() as batch:
                for row in rows:
                    batch.put_item(Item=row | {"amount": Decimal(str(row["amount"]))})

        yield {
            "boto3 batch_writer": peer,
            PLAIN: lambda rows: written(DynamoDBSink("table", endpoint_url=url, versions=False), rows),
            VERSIONED: lambda rows: written(DynamoDBSink("table", endpoint_url=url), rows),
            TOGETHER: lambda rows: written(DynamoDBSink("table", endpoint_url=url, transactions=True), rows),
        }
    finally:
        service.kill()


@contextmanager
def opensearch_ways() -> Iterator[Mapping[str, Write]]:
    """Documents, by `parallel_bulk` of opensearch-py and by the sink, into the model of the tests."""
    with Scratch() as folder, model_process(folder.new()) as cluster:

        def peer(rows: list[dict[str, Any]]) -> None:
            client = OpenSearch(cluster.url, http_compress=True)
            actions = ({"_index": "p", "_id": row["id"], "_source": row} for row in rows)
            for done, answer in parallel_bulk(client, actions, thread_count=4, chunk_size=500):
                assert done, answer

        yield {
            "opensearch-py parallel_bulk": peer,
            PLAIN: lambda rows: written(OpenSearchSink(cluster.url, index="p", key_columns="id", versions=False), rows),
            VERSIONED: lambda rows: written(OpenSearchSink(cluster.url, index="v", key_columns="id"), rows),
        }


SERVICES: Mapping[str, Callable[[], Any]] = {
    "redis": redis_ways,
    "dynamodb": dynamodb_ways,
    "opensearch": opensearch_ways,
}


def written(sink: Any, rows: list[dict[str, Any]]) -> None:
    """Write rows in one epoch, as Arrow batches of 10,000, as Spark sends them."""
    driver = LocalDriver(sink, MemoryRecoveryConfig())
    ticket = driver.coordinator().begin(0)
    context = WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, 1, token=ticket.token)
    partition = driver.task_sink().bind(context).build("sink", 0, 0)
    try:
        for start in range(0, len(rows), 10_000):
            partition.write_record_batch(pa.RecordBatch.from_pylist(rows[start : start + 10_000]))
        partition.flush(True)
    finally:
        partition.close()


def measure(given: Given, only: str | None = None) -> Result:
    started = now()
    rows = [
        {"id": number, "text": f"row {number} ä", "amount": number * 1.5, "day": "2026-11-26"}
        for number in range(given.rows)
    ]
    lines: list[Line] = []
    for name, ways in SERVICES.items():
        if only in (None, name):
            with ways() as found:
                lines += _lines(name, found, rows, given.pairs)
    peers = {peer for line in lines for peer in line.ratios}
    return Result(
        benchmark="requests",
        title="Upserts by key, one task, beside the client's own helper",
        unit="rows/s",
        wanted=dict.fromkeys(sorted(peers), "≥ 0.9"),
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _lines(name: str, ways: Mapping[str, Write], rows: list[dict[str, Any]], pairs: int) -> list[Line]:
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(pairs):
        for way, write in ways.items():
            begun, worked = time.perf_counter(), time.process_time()
            write(rows)
            cpu[way].append(len(rows) / (time.process_time() - worked))
            rates[way].append(len(rows) / (time.perf_counter() - begun))
    peer = next(iter(ways))
    return [
        Line(
            group=name,
            label=way,
            figure=known(Figure.of(found)),
            per_cpu_second=known(Figure.of(cpu[way])),
            ratios={to: _ratio(found, rates[to]) for to in _peers_of(way, peer)},
            cpu_ratios={to: _ratio(cpu[way], cpu[to]) for to in _peers_of(way, peer)},
        )
        for way, found in rates.items()
    ]


def _peers_of(way: str, peer: str) -> list[str]:
    """The client's helper, and for writes with versions those without: the price of versions."""
    return [] if way == peer else [peer] if way == PLAIN else [peer, PLAIN]


def _ratio(ours: list[float], theirs: list[float]) -> Figure:
    return known(Figure.of([own / other for own, other in zip(ours, theirs, strict=True)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", choices=[*SERVICES])
    own, rest = parser.parse_known_args()
    finish(measure(parse(__doc__ or "", DEFAULT, rest), own.only))
    sys.exit()
