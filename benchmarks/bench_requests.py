"""Throughput of the sinks whose writes carry versions, beside the client library's own way to write many rows.

    python -m benchmarks.bench_requests --rows 50000 --pairs 3 [--only redis]

Runs on the local engine, without Spark, in one process. Each server runs in a process of its own. In each pair the
peer, the sink without versions and the sink with versions write the same rows in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import redis

from benchmarks.common import Given, finish, known, machine, parse
from benchmarks.results import Figure, Line, Result, now
from outfall.capabilities import WriterInitContext
from outfall.redis import RedisSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.support.redis_server import redis_server

DEFAULT = Given(rows=50_000, pairs=3)
PLAIN, VERSIONED = "without versions", "with versions"
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


SERVICES: Mapping[str, Callable[[], Any]] = {"redis": redis_ways}


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
        wanted=dict.fromkeys(sorted(peers), "≥ 0.3"),
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
