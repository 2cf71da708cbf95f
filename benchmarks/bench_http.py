"""`HttpSink` in one worker process, against a service of 20 ms: requests/s, rows/s, and the limiter at a knee.

    python -m benchmarks.bench_http --rows 20000 --pairs 3

Runs on the local engine, without Spark; the service is a process of its own. `--rows` is how many rows, and so
requests, the first line sends. The peer of the second is what `foreach` does for each row, without what Spark adds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import requests

from benchmarks.common import Given, finish, known, machine, parse
from benchmarks.http_service import http_service
from benchmarks.results import Figure, Line, Result, now
from outfall.http import HttpSink
from outfall.testing import LocalDriver
from outfall.testing.benchmark.rows import Scratch

DEFAULT = Given(rows=20_000, pairs=3)
SERVICE, IN_FLIGHT, KNEE, BATCH = 0.02, 64, 40, 500
ONE, MANY, LIMIT = "one row per request", "500 rows per request", "gradient limiter"
IDEAL, POST, AT = f"ideal {IN_FLIGHT / SERVICE:,.0f}/s", "requests.post per row", f"knee {KNEE}"
WANTED = {IDEAL: "≥ 0.8", POST: "≥ 10", AT: "0.8 to 1.2"}


def measure(given: Given, scratch: Scratch) -> Result:
    started = now()
    with http_service(SERVICE) as url:
        ones = [_speed(url, given.rows, scratch, body="record", limiter="fixed") for _ in range(given.pairs)]
        posts = [_timed(lambda: _post(url, max(given.rows // 100, 10))) for _ in range(given.pairs)]
        many = [_speed(url, given.rows * 10, scratch, max_batch_size=BATCH) for _ in range(given.pairs)]
    limits = [_limit(given.rows, scratch) for _ in range(given.pairs)]
    post = [max(given.rows // 100, 10) / seconds for seconds in posts]
    return Result(
        benchmark="http",
        title="The HTTP sink against a service of 20 ms",
        unit="requests/s, rows/s, requests in flight",
        wanted=WANTED,
        lines=[
            _line("requests/s", ONE, ones, IDEAL, [IN_FLIGHT / SERVICE] * given.pairs),
            _line("rows/s", POST, post, POST, post),
            _line("rows/s", MANY, many, POST, post),
            _line("requests in flight", LIMIT, limits, AT, [float(KNEE)] * given.pairs),
        ],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _line(group: str, label: str, figures: list[float], peer: str, to: list[float]) -> Line:
    ratios = {peer: known(Figure.of([own / other for own, other in zip(figures, to, strict=True)]))}
    return Line(group=group, label=label, figure=known(Figure.of(figures)), ratios=ratios)


def _rows(count: int) -> list[Any]:
    return [{"id": number, "text": "some text of a row", "amount": number / 7} for number in range(count)]


def _speed(url: str, rows: int, scratch: Scratch, **options: Any) -> float:
    """Rows per second of an epoch, after one that opens the connections and finds the limit."""
    sink = HttpSink(url, max_in_flight_requests=IN_FLIGHT, **options)
    driver = LocalDriver(sink, str(scratch.new()))
    driver.run_epoch(0, [_rows(max(rows // 4, 1))])
    values = _rows(rows)
    return rows / _timed(lambda: driver.run_epoch(1, [values]))


def _post(url: str, rows: int) -> None:
    for row in _rows(rows):
        requests.post(url, json=row, timeout=30).raise_for_status()


def _limit(rows: int, scratch: Scratch) -> float:
    """The mean limit over the second half of an epoch, against a service that has a knee."""
    with http_service(SERVICE, KNEE) as url:
        sink = HttpSink(url, body="record", max_in_flight_requests=200)
        driver = LocalDriver(sink, str(scratch.new()))
        found: list[int] = []
        over = threading.Event()

        def look() -> None:
            while not over.wait(SERVICE / 2):
                found.append(sink.worker.host_state().limiter.limit)

        looking = threading.Thread(target=look)
        looking.start()
        driver.run_epoch(0, [_rows(rows)])
        over.set()
        looking.join()
        late = found[len(found) // 2 :] or [sink.worker.host_state().limiter.limit]
        return sum(late) / len(late)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run() -> None:
    given = parse(__doc__.splitlines()[0] if __doc__ else "", DEFAULT, sys.argv[1:])
    with Scratch() as scratch:
        finish(measure(given, scratch))


if __name__ == "__main__":
    run()
