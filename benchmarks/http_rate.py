"""Throughput of an `HttpSink` in a separate process: rows per second and per CPU second.

    python -m benchmarks.http_rate http://127.0.0.1:8080/events 20000 '{"body": "record"}'

PYTHONPATH selects the revision of the sink, so that two revisions can be measured alternately.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Rate(NamedTuple):
    """The rates of one epoch."""

    rows_per_second: float
    rows_per_cpu_second: float


def rate(url: str, rows: int, options: dict[str, Any], checkout: str | None = None) -> Rate:
    """Measure one epoch, after a first epoch that opens the connections and finds the limit."""
    base = ROOT if checkout is None else Path(checkout)
    paths = [str(base / root) for root in ("core", "engine", "connectors", "tools") if (base / root).is_dir()]
    command = [sys.executable, "-m", "benchmarks.http_rate", url, str(rows), json.dumps(options)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])}
    output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return Rate(*json.loads(output))


def made(count: int) -> list[Any]:
    """Return rows to send."""
    return [{"id": number, "text": "some text of a row", "amount": number / 7} for number in range(count)]


def main() -> None:
    from outfall.http import HttpSink
    from outfall.testing import LocalDriver

    url, count, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    with tempfile.TemporaryDirectory() as directory:
        driver = LocalDriver(HttpSink(url, **options), directory)
        driver.run_epoch(0, [made(max(count // 4, 1))])
        values = made(count)
        started, used = time.perf_counter(), time.process_time()
        driver.run_epoch(1, [values])
        print(json.dumps([count / (time.perf_counter() - started), count / (time.process_time() - used)]))


if __name__ == "__main__":
    main()
