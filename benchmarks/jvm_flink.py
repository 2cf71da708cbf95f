"""`FileSink` beside Flink's file sink, both as streams and exactly once: rows/s and CPU time.

    python -m benchmarks.jvm_flink --rows 2000000 --pairs 3

Needs the environment of `nox -s peers_bench`. Flink's jars are those of PyPI's `apache-flink-libraries`, its Parquet
format is Maven's, and Hadoop's classes, which that needs, are Spark's. Both engines read the same Parquet files with
two tasks; Spark's stream commits four epochs, and Flink every five seconds and at its end. Flink's cluster
stays up like Spark's session, in a process of its own, whose CPU time counts. Both sinks sync their files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.common import Given, machine, main, throughput
from benchmarks.results import Result, now
from outfall.file import FileSink
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import SCHEMA, Scratch, write_rows
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds
from tests.peers.support.jars import compiling_java, jars

DEFAULT = Given(rows=2_000_000, pairs=3)
EPOCHS = 4
CHECKPOINTS_APART = 5000
"""Milliseconds."""
TASKS = 2
FORMATS = {"jsonl": "json", "parquet": "parquet"}
"""Format name of Outfall → format name of Flink."""
OURS, FLINKS, PEER = "FileSink", "Flink 2.3.0", "Flink"
WARM_UP = 2

_JOB = Path(__file__).with_name("FlinkFiles.java")
_PACKAGES = ("lang", "nio", "util", "util.concurrent")
"""Packages of Java that Flink opens to itself, as its own scripts do."""

Write = Callable[[str, Path], None]
"""Writes the rows in a format to a directory."""


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Run both sinks alternately, in each format."""
    started = now()
    rows = scratch.rows / "mixed"
    write_rows(rows, given.rows, per_file=given.rows // (EPOCHS * TASKS))
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", TASKS).parquet(str(rows))
    written: list[Path] = []

    def ours(kind: str) -> None:
        written.append(scratch.new())
        stream = PythonApi().stream(df, FileSink(written[-1], format=kind), scratch.new())
        stream.trigger(availableNow=True).start().awaitTermination()

    def between() -> None:
        for directory in written:
            if (found := _count(directory)) != given.rows:
                sys.exit(f"{found} rows are in the files, of {given.rows}")
        written.clear()
        scratch.clear()

    with flink(rows) as write:

        def flinks(kind: str) -> None:
            written.append(scratch.new())
            write(FORMATS[kind], written[-1])

        jobs: dict[str, Job] = {}
        for kind in FORMATS:
            jobs[f"{OURS}, {kind}"] = partial(ours, kind)
            jobs[f"{FLINKS}, {kind}"] = partial(flinks, kind)
        runs = in_turn(jobs, given.rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=between, warm_up=WARM_UP)
    peers = {f"{OURS}, {kind}": {PEER: f"{FLINKS}, {kind}"} for kind in FORMATS}
    return Result(
        benchmark="jvm_flink",
        title="Files, beside Flink's own sink",
        unit="rows/s",
        wanted={PEER: "no target"},
        lines=[throughput(f"{given.rows:,} mixed rows, streamed", job, runs, peers.get(job, {})) for job in jobs],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _count(directory: Path) -> int:
    """Return the number of rows in published files: both sinks hide the others."""
    count = 0
    for path in directory.iterdir():
        if not path.is_file() or path.name.startswith((".", "_")):
            continue
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                count += pq.read_metadata(path).num_rows
            else:
                file.seek(0)
                count += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return count


@contextmanager
def flink(rows: Path) -> Iterator[Write]:
    """Run a cluster of Flink in a process of its own, which copies these rows. Exits if it cannot be started."""
    with tempfile.TemporaryDirectory(prefix="outfall-flink-", ignore_cleanup_errors=True) as folder:
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _PACKAGES]
        command = [
            compiling_java(), "-Xmx2g", *opened, "-Dlog4j2.level=ERROR", "-cp", _class_path(), str(_JOB), str(rows),
            f"{folder}/checkpoints", str(TASKS), str(CHECKPOINTS_APART),
        ]  # fmt: skip
        log = Path(folder, "log")
        with log.open("wb") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            process = subprocess.Popen(command, text=True, cwd=folder, **pipes)  # type: ignore[call-overload]
        try:
            _await(process, "ready", log)

            def write(kind: str, directory: Path) -> None:
                print(kind, directory, sep="\t", file=process.stdin, flush=True)
                _await(process, "done", log)

            yield write
        finally:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[str], word: str, log: Path) -> None:
    for line in process.stdout or ():
        if line.strip() == word:
            return
    sys.exit(f"Flink has ended:\n{log.read_text()[-3000:]}")


def _class_path() -> str:
    found, spark = find_spec("pyflink"), find_spec("pyspark")
    if found is None or spark is None or spark.origin is None:
        sys.exit("Flink is missing. What to do: nox -s peers_bench -- jvm_flink")
    try:
        parquet = jars("flink-2.3")
    except (pytest.fail.Exception, pytest.skip.Exception) as failure:
        sys.exit(f"Flink's Parquet format is missing: {failure}")
    hadoop = sorted(Path(spark.origin).parent.glob("jars/hadoop-client-*.jar"))
    return ":".join(
        [*(f"{place}/lib/*" for place in found.submodule_search_locations or ()), f"{parquet}/*", *map(str, hadoop)]
    )


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
