"""Tables whose files Spark's own writer encodes: rows, partitions and bounds are as when tasks of Python write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from outfall.errors import ConfigurationError
from outfall.recovery import history
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.filters.test_filters import has_no_literal, is_in_with_zero, misled
from tests.integration.support import filtering
from tests.integration.support.awkward import DELTA, ICEBERG
from tests.integration.support.awkward_frame import IN_CHUNKS, TIMESTAMPS, awkward_rows, filters, with_timestamps
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import embedded
from tests.integration.support.iceberg_reader import path_of
from tests.integration.support.reading import forget_commit, read_stream, run, write_source
from tests.integration.support.tables import DeltaLake, IcebergLake, LakeTable
from tests.one_each import thorough

pytestmark = pytest.mark.spark

FROM_SESSION = pytest.mark.skipif(pyspark_version() >= (4, 3), reason="Spark 4.3 takes it as an option of the writer")


@pytest.fixture
def lane(spark: SparkSession) -> Iterator[SparkSession]:
    """The session as a table with timestamps needs it."""
    with with_timestamps(spark):
        yield spark


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def new_lake(kind: str, duck: Duck, directory: Path) -> LakeTable:
    if kind == "delta":
        return DeltaLake(duck, directory)
    place = directory / f"lake-{len(list(directory.iterdir()))}"
    place.mkdir()
    return IcebergLake(duck, embedded(place))


@pytest.fixture
def lake(kind: str, duck: Duck, tmp_path: Path) -> LakeTable:
    return new_lake(kind, duck, tmp_path)


@pytest.fixture
def rows(lane: SparkSession) -> DataFrame:
    return lane.range(400, numPartitions=3).selectExpr(
        "id",
        "cast(id % 3 AS int) AS small",
        "if(id % 5 = 0, NULL, concat('ä/=% ', id % 2)) AS text",
        "if(id % 7 = 0, NULL, date_add(date'0001-01-01', cast(id % 2 AS int))) AS day",
        "timestamp_micros(id % 2 * 1000001 - 1) AS moment",
        "cast(id % 3 / 8 AS decimal(10, 3)) AS part",
        "id % 2 = 0 AS flag",
        "named_struct('a', id, 'b', cast(id AS string)) AS nested",
    )


@pytest.mark.thorough
def test_a_batch_is_the_same_table_whoever_encodes_it(rows: DataFrame, kind: str, duck: Duck, tmp_path: Path) -> None:
    ours, lane = new_lake(kind, duck, tmp_path), new_lake(kind, duck, tmp_path)
    write(rows, ours.sink())
    result = write(rows, lane.sink(writer="spark"))
    columns = "id, small, text, day, epoch_us(moment), part, flag, nested"
    assert Counter(map(repr, lane.read(columns))) == Counter(map(repr, ours.read(columns)))
    assert (result.counts["rows"], result.counts["rows_by_spark"]) == (400, 400)


@pytest.mark.parametrize("kind", ["delta", thorough("iceberg")], indirect=True)
def test_a_stream_writes_each_row_once_also_if_the_writer_changes(
    lane: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source", files=2), tmp_path / "chk"

    def go(writer: str) -> None:
        run(write_stream(read_stream(lane, source), lake.sink(writer=writer), checkpoint=checkpoint))

    go("spark")
    forget_commit(checkpoint, 1)
    for start, writer in ((2, "spark"), (3, "outfall"), (4, "spark")):
        write_source(source, files=1, start=start)
        go(writer)
    assert lake.ids() == list(range(50))
    assert [epoch.rows for epoch in history(str(checkpoint)) if not epoch.skipped] == [10] * 5


def test_an_epoch_without_rows_adds_no_files(rows: DataFrame, lake: LakeTable) -> None:
    write(rows.where("id < 0"), lake.sink(writer="spark"))
    assert lake.ids() == []


# --- bounds


@pytest.mark.thorough
def test_readers_of_delta_find_by_bounds_what_is_there(lane: SparkSession, duck: Duck, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    rows, names = awkward_rows(lane, DELTA, tmp_path / "rows")
    lake = DeltaLake(duck, tmp_path)
    write(rows, lake.sink(writer="spark", writer_options=IN_CHUNKS))
    table = DeltaTable(lake.directory)
    adds = pa.table(table.get_add_actions(flatten=True))
    assert adds.num_rows > 10
    assert {"min.utc", "max.decimal18_4", "min.struct.n.i", "min.local"} <= set(adds.column_names)
    given = filters(DELTA, names)
    assert misled(lambda some: filtering.by_duck(duck, f"delta_scan('{table.table_uri}')", some), given) == {}
    assert misled(lambda some: filtering.by_datafusion(table, some), given) == {}


@pytest.mark.thorough
def test_readers_of_iceberg_find_by_bounds_and_ids_what_is_there(
    lane: SparkSession, duck: Duck, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    rows, names = awkward_rows(lane, ICEBERG, tmp_path / "rows")
    lake = new_lake("iceberg", duck, tmp_path)
    assert isinstance(lake, IcebergLake)
    write(rows, lake.sink(writer="spark", writer_options=IN_CHUNKS))
    table = lake.table()
    for before, after in (("number", "renamed"), ("renamed", "number")):
        # Readers that look for names instead of ids find NULL.
        with table.update_schema() as update:
            update.rename_column(before, after)
        read = table.refresh().scan(selected_fields=(after,)).to_arrow()[after].to_pylist()
        assert Counter(read) == Counter(row["number"] for row in rows.select("number").collect())
    files = table.refresh().inspect.files()
    assert files.num_rows > 10
    given = filters(ICEBERG, names)
    assert (
        misled(lambda some: filtering.by_duck(duck, f"iceberg_scan('{path_of(table.metadata_location)}')", some), given)
        == {}
    )
    some = [each for each in given if not (has_no_literal(each) or is_in_with_zero(each))]
    assert misled(lambda each: filtering.by_pyiceberg(table, each), some) == {}


# --- what is refused


@FROM_SESSION
def test_a_session_with_other_timestamps_is_refused(rows: DataFrame, spark: SparkSession, lake: LakeTable) -> None:
    spark.conf.set(TIMESTAMPS, "INT96")
    with pytest.raises(ConfigurationError, match=f"{TIMESTAMPS} is INT96.*TIMESTAMP_MICROS"):
        write(rows, lake.sink(writer="spark"))
    assert lake.ids() == []


@pytest.mark.parametrize("expression", ["array(id)", "map('a', id)", "named_struct('a', array(id))"])
def test_what_iceberg_would_not_read_is_refused_before_a_table_is_made(
    lane: SparkSession, duck: Duck, tmp_path: Path, expression: str
) -> None:
    lake = new_lake("iceberg", duck, tmp_path)
    with pytest.raises(ConfigurationError, match="no field ids"):
        write(lane.range(3).selectExpr("id", f"{expression} AS v"), lake.sink(writer="spark"))
    assert lake.states() == []


@pytest.mark.parametrize("kind", ["delta", thorough("iceberg")], indirect=True)
def test_a_partitioned_table_is_refused_before_a_row_moves(rows: DataFrame, lake: LakeTable) -> None:
    write(rows, lake.sink(partition_by="small"))
    with pytest.raises(ConfigurationError, match=r"partitioned.*small"):
        write(rows, lake.sink(writer="spark"), mode="append")
    assert len(lake.ids()) == 400


def test_a_null_in_a_required_column_fails_the_epoch(lane: SparkSession, duck: Duck, tmp_path: Path) -> None:
    lake = DeltaLake(duck, tmp_path)
    DeltaTable.create(lake.directory, pa.schema([pa.field("id", pa.int64(), False)]))
    with pytest.raises(Exception, match=r"column 'id' is NULL.*the table requires a value"):
        write(lane.range(3).selectExpr("nullif(id, 1) AS id"), lake.sink(writer="spark", create_table="never"))
    assert lake.ids() == []
    write(lane.range(3).selectExpr("if(id < 3, id, NULL) AS id"), lake.sink(writer="spark", create_table="never"))
    assert lake.ids() == [0, 1, 2]
