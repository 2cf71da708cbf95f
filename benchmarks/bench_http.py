"""Throughput of `HttpSink` in one worker process with a 20 ms service, and its limiter at a knee.

    python -m benchmarks.bench_http --rows 20000 --pairs 3 [--former CHECKOUT]

Runs on the local engine, without Spark. The service runs in a separate process. `--rows` is the number of rows, and
of requests, in the first line. The peer of the second line sends one request per row, as `foreach` does, without the
cost of Spark. With `--former`, the sink of another revision in that checkout sends the same rows alternately, and is a
peer of both lines.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import requests

from benchmarks.common import Given, finish, known, machine, parse
from benchmarks.http_rate import Rate, made, rate
from benchmarks.http_service import http_service
from benchmarks.results import Figure, Line, Result, now
from outfall.http import HttpSink
from outfall.testing import LocalDriver
from outfall.testing.benchmark.rows import Scratch

DEFAULT = Given(rows=20_000, pairs=3)
SERVICE, IN_FLIGHT, KNEE, BATCH = 0.02, 64, 40, 500
ONE, MANY, LIMIT = "one row per request", "500 rows per request", "gradient limiter"
IDEAL, POST, AT = f"ideal {IN_FLIGHT / SERVICE:,.0f}/s", "requests.post per row", f"knee {KNEE}"
FORMER = "former client"
WANTED = {IDEAL: "≥ 0.8", POST: "≥ 10", AT: "0.8 to 1.2"}
WANTED_OF_FORMER = {FORMER: "≥ 0.6 with one row, ≥ 0.95 with 500"}


def measure(given: Given, scratch: Scratch, former: str | None = None) -> Result:
    started = now()
    with http_service(SERVICE) as url:
        ones = [_rates(url, given.rows, former, body="record", limiter="fixed") for _ in range(given.pairs)]
        posts = [_timed(lambda: _post(url, max(given.rows // 100, 10))) for _ in range(given.pairs)]
        many = [_rates(url, given.rows * 10, former, max_batch_size=BATCH) for _ in range(given.pairs)]
    limits = [_limit(given.rows, scratch) for _ in range(given.pairs)]
    post = [max(given.rows // 100, 10) / seconds for seconds in posts]
    return Result(
        benchmark="http",
        title="The HTTP sink against a service of 20 ms",
        unit="requests/s, rows/s, requests in flight",
        wanted=WANTED | (WANTED_OF_FORMER if former else {}),
        lines=[
            _sent("requests/s", ONE, ones, {IDEAL: [IN_FLIGHT / SERVICE] * given.pairs}),
            _line("rows/s", POST, post, {POST: post}),
            _sent("rows/s", MANY, many, {POST: post}),
            _line("requests in flight", LIMIT, limits, {AT: [float(KNEE)] * given.pairs}),
        ],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _rates(url: str, rows: int, former: str | None, **options: Any) -> list[Rate]:
    """The rates of this revision and, alternately, of the former one."""
    checkouts = [None] if former is None else [None, former]
    return [rate(url, rows, {"max_in_flight_requests": IN_FLIGHT} | options, checkout) for checkout in checkouts]


def _sent(group: str, label: str, pairs: list[list[Rate]], to: dict[str, list[float]]) -> Line:
    former = [pair[1] for pair in pairs if len(pair) > 1]
    ours = [pair[0] for pair in pairs]
    peers = {FORMER: [found.rows_per_second for found in former]} if former else {}
    line = _line(group, label, [found.rows_per_second for found in ours], to | peers)
    if former:
        cpu = [own.rows_per_cpu_second / other.rows_per_cpu_second for own, other in zip(ours, former, strict=True)]
        line.cpu_ratios = {FORMER: known(Figure.of(cpu))}
    return line


def _line(group: str, label: str, figures: list[float], peers: dict[str, list[float]]) -> Line:
    ratios = {
        peer: known(Figure.of([own / other for own, other in zip(figures, to, strict=True)]))
        for peer, to in peers.items()
    }
    return Line(group=group, label=label, figure=known(Figure.of(figures)), ratios=ratios)


def _post(url: str, rows: int) -> None:
    for row in made(rows):
        requests.post(url, json=row, timeout=30).raise_for_status()


def _limit(rows: int, scratch: Scratch) -> float:
    """The mean limit over the second half of an epoch, with a service that has a knee."""
    with http_service(SERVICE, KNEE) as url:
        sink = HttpSink(url, body="record", max_in_flight_requests=200)
        driver = LocalDriver(sink, str(scratch.new()))
        found: list[int] = []
        over = threading.Event()

        def look() -> None:
            while not over.wait(SERVICE / 2):
                found.append(sink.delegate.host_state().limiter.limit)

        looking = threading.Thread(target=look)
        looking.start()
        driver.run_epoch(0, [made(rows)])
        over.set()
        looking.join()
        late = found[len(found) // 2 :] or [sink.delegate.host_state().limiter.limit]
        return sum(late) / len(late)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--former")
    own, rest = parser.parse_known_args(sys.argv[1:])
    given = parse(f"{(__doc__ or '').splitlines()[0]} --former CHECKOUT: see above.", DEFAULT, rest)
    with Scratch() as scratch:
        finish(measure(given, scratch, own.former))


if __name__ == "__main__":
    run()
