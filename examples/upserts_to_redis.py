"""Changes of customers → Spark → Redis, killed once in between: the final state is that of one run.

    pip install 'outfall[spark,redis]'; sudo apt-get install redis-server
    python examples/upserts_to_redis.py                          # starts a server of its own
    python examples/upserts_to_redis.py redis://localhost:6379   # uses yours; its keys begin with customer:

The job is in `start`. The rest creates changes, kills the job once, and compares Redis with the changes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outfall.redis import RedisSink
from outfall.spark import write_stream

EPOCHS, ROWS, CUSTOMERS = 6, 500, 300
COLUMNS = "id int, change int, name string, closed boolean"


def start(spark: SparkSession, url: str, directory: Path) -> StreamingQuery:
    """Upsert or delete each customer; of several changes in an epoch, the one with the greatest number wins."""
    changes = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(directory / "changes"))
    sink = RedisSink(url, "customer:{id}", order_column="change", delete_marker="closed")
    return write_stream(changes, sink, checkpoint=directory / "checkpoint").trigger(availableNow=True).start()


def main() -> int:
    if os.environ.get("EXAMPLE_JOB"):
        return job(sys.argv[1], Path(sys.argv[2]))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = create(directory / "changes")
        own = None if sys.argv[1:] else server(directory)
        url = sys.argv[1] if sys.argv[1:] else "redis://127.0.0.1:16379"
        try:
            for kill in (True, False):
                child = subprocess.Popen(
                    [sys.executable, __file__, url, name], env=os.environ | {"EXAMPLE_JOB": "1"}, start_new_session=True
                )
                if kill:
                    wait_for_rows(url, child)
                    os.killpg(child.pid, signal.SIGKILL)
                    print("Killed the job.")
                child.wait()
            return 0 if check(url, expected) else 1
        finally:
            if own is not None:
                own.kill()


def job(url: str, directory: Path) -> int:
    """Run the stream to the end of the changes."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    start(spark, url, directory).awaitTermination()
    return 0


def create(directory: Path) -> dict[str, dict[str, str]]:
    """Write one file of changes per epoch, and return what Redis must contain at the end."""
    directory.mkdir()
    state: dict[str, dict[str, str]] = {}
    chance, change = random.Random(1), 0
    for epoch in range(EPOCHS):
        lines = []
        for _ in range(ROWS):
            change += 1
            row: dict[str, object] = {
                "id": chance.randrange(CUSTOMERS),
                "change": change,
                "name": f"name {chance.random()}",
            }
            closed = chance.random() < 0.1
            lines.append(json.dumps(row | {"closed": closed}))
            state.pop(f"customer:{row['id']}", None)
            if not closed:
                state[f"customer:{row['id']}"] = {name: str(value) for name, value in row.items()}
        path = directory / f"{epoch}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (epoch + 1, epoch + 1))  # Spark reads the oldest file first
    return state


def server(directory: Path) -> subprocess.Popen[bytes]:
    """Start a server that keeps what it acknowledges."""
    program = shutil.which("redis-server") or sys.exit("Install redis-server, or pass the URL of a server.")
    settings = ["--port", "16379", "--appendonly", "yes", "--appendfsync", "always", "--dir", str(directory)]
    own = subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL)
    while True:
        try:
            redis.Redis(port=16379).ping()
            return own
        except redis.ConnectionError:
            time.sleep(0.05)


def wait_for_rows(url: str, job: subprocess.Popen[bytes]) -> None:
    """Return when the first rows are there, or the job has ended without any."""
    client = redis.Redis.from_url(url)
    while not next(client.scan_iter("customer:*", count=1000), None) and job.poll() is None:
        time.sleep(0.05)


def check(url: str, expected: dict[str, dict[str, str]]) -> bool:
    """Compare what an independent client reads with the changes."""
    client = redis.Redis.from_url(url, decode_responses=True)
    found = {key: client.hgetall(key) for key in client.scan_iter("customer:*", count=1000)}
    wrong = sum(found.get(key) != row for key, row in expected.items())
    print(f"customers expected {len(expected)}, found {len(found)}, wrong or missing {wrong}")
    return found == expected


if __name__ == "__main__":
    sys.exit(main())
