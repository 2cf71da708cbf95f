"""An outage of a minute of each real server, under a query of real Spark, as a real Prometheus sees it.

`-s` prints how long it took to be seen.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.http import HttpSink
from outfall.kafka import KafkaSink
from outfall.metrics.exporter import Exporter
from outfall.postgres import PostgresSink
from outfall.protocol.heartbeat import heartbeats_in, stored_beside
from outfall.recovery import recovery_config
from outfall.s3 import S3Sink
from outfall.spark import CommitPolicy, write_stream
from tests.integration.s3.support import Session
from tests.integration.support.http_receiver import ROOT, accepted
from tests.integration.support.kafka_reader import read
from tests.integration.support.kafka_server import Noida
from tests.integration.support.postgres import own_server
from tests.integration.support.prometheus import prometheus
from tests.integration.support.reading import read_stream, write_source
from tests.integration.support.s3 import seaweedfs
from tests.integration.support.servers import open_folder
from tests.integration.support.waiting import until
from tests.unit.support.command import parsed

pytestmark = [pytest.mark.long, pytest.mark.spark]

OUTAGE = 60.0
SEEN_WITHIN = 10.0


@dataclass(frozen=True)
class Destination:
    """A server with a sink for it, that can be taken away and given back with all that it had."""

    sink: Any
    take: Callable[[], None]
    give_back: Callable[[], None]
    ids: Callable[[], list[int]]


@contextmanager
def postgres(folder: Path) -> Iterator[Destination]:
    """Killed, and started again on its data."""
    with own_server() as server:
        dsn = server.new_database()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int, k text)")

        def ids() -> list[int]:
            with psycopg.connect(dsn) as connection:
                return [number for (number,) in connection.execute("SELECT id FROM t ORDER BY id")]

        yield Destination(PostgresSink(dsn, "t", retry_deadline="3 minutes"), server.kill, server.start, ids)


@contextmanager
def s3(folder: Path) -> Iterator[Destination]:
    """Killed, and started again on its data."""
    with seaweedfs(folder) as server:
        server.s3.client().create_bucket(Bucket="outage")
        sink = S3Sink(
            "outage",
            "out",
            endpoint_url=server.s3.endpoint,
            path_style=True,
            session_factory=Session(server.s3.key, server.s3.secret),
            retry_deadline="3 minutes",
        )

        def ids() -> list[int]:
            found = server.s3.objects("outage", "out/")
            lines = [line for name, data in found.items() if name[0] != "_" for line in data.splitlines()]
            return sorted(json.loads(line)["id"] for line in lines)

        yield Destination(sink, server.kill, server.start, ids)


@contextmanager
def http(folder: Path) -> Iterator[Destination]:
    """Stopped: connections are taken, and nothing is answered."""
    command = [sys.executable, "-m", "tests.integration.support.http_receiver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/t"
        sink = HttpSink(url, request_timeout=2, max_retries=None, retry_deadline="3 minutes")
        yield Destination(
            sink,
            lambda: process.send_signal(signal.SIGSTOP),
            lambda: process.send_signal(signal.SIGCONT),
            # Those of tries that were given up may be there twice.
            lambda: sorted({record["id"] for record in accepted(url)}),
        )
        process.kill()


@contextmanager
def kafka(folder: Path) -> Iterator[Destination]:
    """Stopped: what it has is in memory."""
    with open_folder() as place:
        server = Noida(place)
        server.start()
        process = server._process
        assert process is not None
        sink = KafkaSink(
            server.address,
            "t",
            value_format="json",
            create_topic="if_missing",
            partitions=1,
            replication_factor=1,
            delivery_timeout="3 minutes",
        )
        yield Destination(
            sink,
            lambda: process.send_signal(signal.SIGSTOP),
            lambda: process.send_signal(signal.SIGCONT),
            # Without parts it is at least once.
            lambda: sorted({json.loads(each.value or b"")["id"] for each in read(server.address, "t")}),
        )
        server.kill()


@pytest.mark.parametrize("server", [postgres, s3, http, kafka], ids=lambda server: server.__name__)
def test_an_outage_of_a_minute_is_seen_and_passes(
    server: Callable[[Path], Any], spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, checkpoint = write_source(tmp_path / "source", files=1), tmp_path / "checkpoint"
    recovery = recovery_config(str(checkpoint))
    folder = tmp_path / "server"
    folder.mkdir()
    with ExitStack() as stack:
        destination: Destination = stack.enter_context(server(folder))
        frame = read_stream(spark, source).select("id", sf.lit("x").alias("k"))
        policy = CommitPolicy(deadline=180)
        query = write_stream(frame, destination.sink, checkpoint=checkpoint, commit=policy).start()
        stack.callback(query.stop)
        until(lambda: completed(recovery) == 0, "the first epoch")
        exporter = stack.enter_context(closing(Exporter.start([recovery], host="127.0.0.1", port=0, every=1)))
        prom = stack.enter_context(prometheus(tmp_path, exporter.port))
        until(lambda: prom.query("outfall_retrying == 0"), "a scrape")

        destination.take()
        began = time.monotonic()
        write_source(source, files=1, start=1)
        seen: dict[str, float] = {}
        looks: dict[str, Callable[[], Any]] = {
            "log": lambda: beats(recovery),
            "status --json": lambda: parsed("status", checkpoint)["steps"][0]["retrying"],
            "prometheus": lambda: prom.query("outfall_retrying == 1"),
            "alert": lambda: "OutfallRetrying" in prom.firing(),
        }
        while time.monotonic() - began < OUTAGE:
            for name in looks.keys() - seen.keys():
                if looks[name]():
                    seen[name] = time.monotonic() - began
            time.sleep(0.2)
        problem = query.exception()
        destination.give_back()
        given_back = time.monotonic()
        until(lambda: completed(recovery) == 1 or query.exception(), "the epoch under the outage", 120)
        assert problem is None, problem
        assert query.exception() is None
        after = {"completed": time.monotonic() - given_back}
        until(
            lambda: not prom.query("outfall_retrying == 1") and "OutfallRetrying" not in prom.firing(), "the end", 120
        )
        after["alert over"] = time.monotonic() - given_back
        assert destination.ids() == list(range(20))
    with capsys.disabled():
        print(f"\n{server.__name__}: seen {rounded(seen)}, after the outage {rounded(after)}")
    assert seen.keys() == looks.keys(), seen
    assert max(seen[name] for name in seen if name != "alert") <= SEEN_WITHIN, seen


def completed(recovery: Any) -> int | None:
    found: int | None = parsed("status", recovery.url())["steps"][0]["completed"] if recovery.steps() else None
    return found


def beats(recovery: Any) -> list[Any]:
    with closing(recovery.open("sink")) as log:
        return list(heartbeats_in(stored_beside(log), generation=0, now=datetime.now(UTC)))


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}
