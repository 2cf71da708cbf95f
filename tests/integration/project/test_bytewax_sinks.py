"""Bytewax's own file sinks, unchanged."""

from __future__ import annotations

from pathlib import Path
from zlib import adler32

import pytest
from pyspark.sql import SparkSession

from outfall.capabilities import Guarantee
from outfall.capability_checks import resolve
from outfall.recovery import history
from outfall.spark import write_stream
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

files = pytest.importorskip("bytewax.connectors.files", reason="Bytewax has no wheels for this Python")

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_file_sink_writes_each_row_once_and_goes_on_after_its_state(spark: SparkSession, tmp_path: Path) -> None:
    source, path = write_source(tmp_path / "source"), tmp_path / "out.txt"
    for start in (2, 3):
        stream = read_stream(spark, source).selectExpr("k", "cast(id as string) as line")
        run(write_stream(stream, files.FileSink(path), key="k", value="line", checkpoint=tmp_path / "checkpoint"))
        forget_commit(tmp_path / "checkpoint", start - 1)
        write_source(source, files=1, start=start)
    assert sorted(map(int, path.read_text().split())) == list(range(30))
    assert [item.skipped for item in history(str(tmp_path / "checkpoint"))] == [0, 0, 10, 0]


@pytest.mark.thorough
def test_dir_sink_routes_by_its_own_part_fn(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    stream = read_stream(spark, write_source(tmp_path / "source")).selectExpr("k", "concat(k, ' ', id) as line")
    sink = files.DirSink(out, 3)
    run(write_stream(stream, sink, key="k", value="line", checkpoint=tmp_path / "checkpoint"))
    found = {path.name: path.read_text().splitlines() for path in out.iterdir()}
    assert sorted(int(line.split()[1]) for lines in found.values() for line in lines) == list(range(20))
    for name, lines in found.items():
        assert {f"part_{adler32(line.split()[0].encode()) % 3}" for line in lines} == {name}


@pytest.mark.thorough
def test_what_an_unfinished_attempt_left_is_cut_back(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    source = write_source(tmp_path / "source", files=1)

    def start() -> None:
        stream = read_stream(spark, source).selectExpr("cast(id as string) as line")
        run(write_stream(stream, files.FileSink(path), value="line", checkpoint=tmp_path / "checkpoint"))

    start()
    with path.open("a") as file:
        file.write("left by a lost attempt\n")
    write_source(source, files=1, start=1)
    start()
    assert sorted(map(int, path.read_text().split())) == list(range(20))


def test_it_is_reported_as_at_least_once(tmp_path: Path) -> None:
    assert resolve(files.FileSink(tmp_path / "out")).guarantee() is Guarantee.AT_LEAST_ONCE
