"""A loss of power left files of Spark's checkpoint empty: Spark or Outfall refuses, and `outfall repair` helps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.cli.commands.app import outfall
from outfall.file import FileSink
from outfall.spark import write_stream
from tests.integration.support.killed_driver import FORMAT_API
from tests.integration.support.reading import found_ids, read_stream, run, write_source

pytestmark = pytest.mark.spark

APIS = ["objects", pytest.param("options", marks=[FORMAT_API, pytest.mark.thorough])]


def writer(spark: SparkSession, place: Path, api: str, *, stateful: bool = False) -> DataStreamWriter:
    rows = read_stream(spark, place / "source")
    rows = rows.dropDuplicates(["id"]) if stateful else rows
    if api == "objects":
        return write_stream(rows, FileSink(place / "out"), checkpoint=place / "chk")
    options = {"sink": "file", "path": str(place / "out"), "checkpointLocation": str(place / "chk")}
    return rows.writeStream.format("outfall").options(**options)


def empty(*paths: Path) -> None:
    """Leave files as a loss of power does: there, and without content. Their checksums too."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        path.with_name(f".{path.name}.crc").write_bytes(b"")


def repaired(checkpoint: Path) -> str:
    result = CliRunner().invoke(outfall, ["repair", str(checkpoint), "--yes"])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.thorough
@pytest.mark.parametrize("api", APIS)
def test_a_query_whose_logs_are_torn_goes_on_after_a_repair(spark: SparkSession, tmp_path: Path, api: str) -> None:
    write_source(tmp_path / "source", files=2)
    run(writer(spark, tmp_path, api))
    checkpoint = tmp_path / "chk"
    write_source(tmp_path / "source", files=1, start=2)
    empty(*(checkpoint / name for name in ("commits/1", "sources/0/2", "offsets/2")))
    with pytest.raises(StreamingQueryException, match="Incomplete log file"):
        run(writer(spark, tmp_path, api))
    assert "3 files moved to outfall-repair; start the query" in repaired(checkpoint)
    run(writer(spark, tmp_path, api))
    assert found_ids(tmp_path / "out") == list(range(30))


@pytest.mark.thorough
@pytest.mark.parametrize("api", APIS)
def test_a_batch_on_torn_state_is_not_begun_and_goes_on_after_a_repair(
    spark: SparkSession, tmp_path: Path, api: str
) -> None:
    """Once it was begun, the one before could not come again to make the state anew."""
    write_source(tmp_path / "source", files=2)
    run(writer(spark, tmp_path, api, stateful=True))
    checkpoint = tmp_path / "chk"
    # The same rows again: without its state the query would write them twice.
    for number in (0, 1):
        shutil.copy(tmp_path / "source" / f"{number:05d}.json", tmp_path / "source" / f"again-{number}.json")
    empty(checkpoint / "state/0/0/2.delta")
    with pytest.raises(StreamingQueryException, match=r"state of version 2 is damaged .* run `outfall repair .*/chk`"):
        run(writer(spark, tmp_path, api, stateful=True))
    assert "Spark will replay batch 1; its rows are read and dropped" in repaired(checkpoint)
    run(writer(spark, tmp_path, api, stateful=True))
    assert found_ids(tmp_path / "out") == list(range(20))
