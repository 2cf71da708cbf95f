"""A filter finds in what a sink wrote exactly the rows that match it, with each reader that skips by bounds.

Each reader's rows without a filter, judged by the reader itself, say what there is to find. Where a reader finds less
in the files of every writer, it is a known limit of that reader, shown below with files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from outfall.delta import DeltaSink
from outfall.file import FileSink
from tests.integration.s3.support import Target
from tests.integration.support import awkward, filtering
from tests.integration.support.awkward import DELTA, FILES, ICEBERG, ROWS, Filter
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.duck import Duck
from tests.integration.support.filtering import Counts
from tests.integration.support.iceberg_epochs import NAME, Lake
from tests.integration.support.iceberg_reader import metadata_location
from tests.integration.support.s3 import S3
from tests.one_each import thorough

SINKS = ["file", pytest.param("s3", marks=pytest.mark.thorough)]
EVERY = [False, pytest.param(True, marks=pytest.mark.thorough)]


def write(sink: Any, recovery: Path, tasks: Sequence[Sequence[pa.RecordBatch]]) -> None:
    """Run an epoch whose tasks write each batch as a row group."""
    driver = BatchDriver(sink, str(recovery))
    sink.check_schema(tasks[0][0].schema)
    with pytest.MonkeyPatch.context() as patch, closing(driver.coordinator()) as coordinator:
        patch.setattr("outfall.formats.parquet._GROUP_ROWS", ROWS)
        ticket = coordinator.begin(0)
        given = ([(None, each) for each in task] for task in tasks)
        coordinator.finish(ticket, [driver.run_task(ticket, 0, index, rows) for index, rows in enumerate(given)])


def row_groups(sink: str) -> list[list[pa.RecordBatch]]:
    """A file of all chunks, of which some have NaN, and one of a chunk without."""
    chunks = awkward.chunks(sink)
    return [chunks, chunks[:1]]


def files(sink: str) -> list[list[pa.RecordBatch]]:
    """A file of each chunk, and one of all."""
    chunks = awkward.chunks(sink)
    return [chunks, *([chunk] for chunk in chunks)]


@pytest.fixture(scope="module")
def file_target(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("file")
    write(FileSink(directory / "out", format="parquet"), directory / "log", row_groups(FILES))
    return sorted(map(str, (directory / "out").glob("part-*")))


@pytest.fixture(scope="module")
def s3_target(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects, downloaded for readers that find files on disks."""
    directory, target = tmp_path_factory.mktemp("s3"), Target(s3)
    write(target.sink(format="parquet"), directory / "log", row_groups(FILES))
    found = []
    for key, content in target.data().items():
        found.append(directory / key)
        found[-1].write_bytes(content)
    return sorted(map(str, found))


@pytest.fixture(scope="module")
def delta_target(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    directory = tmp_path_factory.mktemp("delta")
    write(DeltaSink(directory / "table", create_table="if_missing"), directory / "log", files(DELTA))
    return DeltaTable(directory / "table")


@pytest.fixture(scope="module")
def iceberg_target(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("iceberg"))
    write(lake.sink(create_table="if_missing"), lake.directory / "log", files(ICEBERG))
    return lake


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    reader = Duck()
    yield reader
    reader.close()


@pytest.fixture
def quick_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, without what takes longer than to read a small file."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.files.openCostInBytes": "0",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, earlier in before.items():
        spark.conf.set(name, str(earlier))


Reader = Callable[[Sequence[Filter]], list[Counts]]


def chosen(sink: str, every: bool) -> list[Filter]:
    """Return the filters of a sink: all, or a sixth of those that try each value with one operator."""
    found = awkward.filters(sink, every=every)
    return found if every else found[::6]


def misled(read: Reader, filters: Sequence[Filter]) -> dict[str, Counts]:
    """Return the filters that find other rows than there are."""
    assert filters
    return {str(each): found for each, found in zip(filters, read(filters), strict=True) if found[0] != found[1]}


@pytest.fixture(params=SINKS)
def parquet(request: pytest.FixtureRequest) -> list[str]:
    """The Parquet files of each sink."""
    found: list[str] = request.getfixturevalue(f"{request.param}_target")
    return found


def test_parquet_of_row_groups_with_and_without_nan_is_whole(parquet: list[str]) -> None:
    for path, chunks in zip(parquet, row_groups(FILES), strict=True):
        assert pq.ParquetFile(path).num_row_groups == len(chunks)
        for number, chunk in enumerate(chunks):
            found = pq.ParquetFile(path).read_row_group(number)
            # Their text, because NaN is not equal to itself.
            assert repr(found.to_pylist()) == repr(chunk.to_pylist())


@pytest.mark.parametrize("every", EVERY)
def test_pyarrow_finds_in_parquet_what_is_there(parquet: list[str], every: bool) -> None:
    dataset = ds.dataset(parquet)
    given = [each for each in chosen(FILES, every) if not is_in_with_zero(each)]
    assert misled(lambda some: filtering.by_arrow(dataset, some), given) == {}


def is_in_with_zero(each: Filter) -> bool:
    """Whether it is one of those with which pyarrow takes a column of zeros for one of minus zeros, in any file."""
    return each.operator == "in" and pa.types.is_floating(each.kind) and 0 in each.values


def test_pyarrow_takes_zero_for_minus_zero_also_in_files_of_its_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.0]}), tmp_path / "own.parquet")
    dataset = ds.dataset(tmp_path / "own.parquet")
    assert filtering.by_arrow(dataset, [Filter(("x",), pa.float64(), "in", (0.0, 1.0))]) == [(0, 1)]


@pytest.mark.parametrize("every", EVERY)
def test_duckdb_finds_in_parquet_what_is_there(parquet: list[str], duck: Duck, every: bool) -> None:
    scan = f"read_parquet({parquet})"
    assert misled(lambda given: filtering.by_duck(duck, scan, given), chosen(FILES, every)) == {}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("target", "every", "one_in"),
    [
        thorough("file_target", False, 4),
        thorough("file_target", True, 4),
        thorough("s3_target", False, 4),
        pytest.param("file_target", True, 1, marks=pytest.mark.long),
    ],
)
def test_spark_finds_in_parquet_what_is_there(
    request: pytest.FixtureRequest, quick_spark: SparkSession, target: str, every: bool, one_in: int
) -> None:
    # Spark takes longer to plan a query than the other readers to run it, so not all are tried at each landing.
    rows = quick_spark.read.parquet(*request.getfixturevalue(target))
    given = [each for each in chosen(FILES, every) if not compares_with_zero(each)]
    assert misled(lambda filters: filtering.by_spark(rows, filters), given[::one_in]) == {}


def compares_with_zero(each: Filter) -> bool:
    """Whether it is one of those of which Spark finds too little, of zero and of minus zero, in any file."""
    return pa.types.is_floating(each.kind) and 0 in each.values


@pytest.mark.spark
def test_spark_looks_for_one_zero_also_in_files_of_its_own(quick_spark: SparkSession, tmp_path: Path) -> None:
    for zero in ("0.0D", "-0.0D"):
        # Several equal values are written with a dictionary, in which the reader looks for the bytes.
        quick_spark.range(3).coalesce(1).selectExpr(f"{zero} AS x").write.mode("append").parquet(str(tmp_path / "own"))
    rows = quick_spark.read.parquet(str(tmp_path / "own"))
    assert filtering.by_spark(rows, [Filter(("x",), pa.float64(), "=", (0.0,))]) == [(3, 6)]


@pytest.mark.parametrize("every", EVERY)
def test_duckdb_finds_in_delta_what_is_there(delta_target: DeltaTable, duck: Duck, every: bool) -> None:
    scan = f"delta_scan('{delta_target.table_uri}')"
    assert misled(lambda given: filtering.by_duck(duck, scan, given), chosen(DELTA, every)) == {}


@pytest.mark.parametrize("every", EVERY)
def test_datafusion_finds_in_delta_what_is_there(delta_target: DeltaTable, every: bool) -> None:
    assert misled(lambda given: filtering.by_datafusion(delta_target, given), chosen(DELTA, every)) == {}


@pytest.mark.parametrize("every", EVERY)
def test_deltalakes_dataset_finds_in_delta_what_is_there(delta_target: DeltaTable, every: bool) -> None:
    dataset = delta_target.to_pyarrow_dataset()
    given = [each for each in chosen(DELTA, every) if each.path not in WITHOUT_BOUNDS]
    given = [each for each in given if not is_in_with_zero(each)]
    assert misled(lambda some: filtering.by_arrow(dataset, some), given) == {}


WITHOUT_BOUNDS = {
    *(("double_nan",), ("float_nan",), ("all_nan",), ("struct",), ("struct.x",)),
    ("long",),  # of which Arrow writes no bounds into a footer
    *(("decimal18_4",), ("decimal38_10",)),  # whose bounds, rounded to what a double holds, are outside the type
}
"""Columns with values but without bounds in a file, whose rows that dataset finds by no filter, whoever wrote them."""


def test_deltalakes_dataset_finds_nothing_without_bounds_also_in_tables_of_its_own(tmp_path: Path) -> None:
    for value in (inf, 7.0):
        write_deltalake(tmp_path / "own", pa.table({"x": [1.0, value]}), mode="append")
    dataset = DeltaTable(tmp_path / "own").to_pyarrow_dataset()
    assert filtering.by_arrow(dataset, [Filter(("x",), pa.float64(), ">", (5.0,))]) == [(1, 2)]


def test_deltalakes_dataset_finds_all_where_the_column_is_none_of_those_with_bounds(tmp_path: Path) -> None:
    """The remedy that docs/delta.md names."""
    named = {"delta.dataSkippingStatsColumns": "id"}
    sink = DeltaSink(tmp_path / "table", create_table="if_missing", configuration=named)
    write(sink, tmp_path / "log", [[batch(id=[1, 2, 3], x=[1.0, nan, 7.0])], [batch(id=[4, 5], x=[inf, 2.0])]])
    table = DeltaTable(tmp_path / "table")
    assert filtering.by_arrow(table.to_pyarrow_dataset(), [Filter(("x",), pa.float64(), ">", (5.0,))]) == [(2, 2)]
    assert len(table.to_pandas(filters=[("x", ">", 5.0)])) == 2


@pytest.mark.parametrize("every", EVERY)
def test_duckdb_finds_in_iceberg_what_is_there(iceberg_target: Lake, duck: Duck, every: bool) -> None:
    scan = f"iceberg_scan('{metadata_location(iceberg_target.directory / 'catalog.db', NAME)}')"
    assert misled(lambda given: filtering.by_duck(duck, scan, given), chosen(ICEBERG, every)) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("every", EVERY)
def test_pyiceberg_finds_what_is_there(iceberg_target: Lake, every: bool) -> None:
    given = [each for each in chosen(ICEBERG, every) if not (has_no_literal(each) or is_in_with_zero(each))]
    assert misled(lambda some: filtering.by_pyiceberg(iceberg_target.table, some), given) == {}


def has_no_literal(each: Filter) -> bool:
    """Whether pyiceberg has no such literal: NaN, and of `float` the infinities, which it takes for finite numbers."""
    missing = {repr(nan), *(repr(value) for value in (inf, -inf) if pa.types.is_float32(each.kind))}
    return not missing.isdisjoint(map(repr, each.values))


def test_pyiceberg_has_no_infinity_of_a_float_also_in_tables_of_its_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = batch(x=pa.array([1.0, inf], pa.float32()))
    lake.create(rows.schema)
    lake.append(rows)
    condition = filtering.iceberg_condition(Filter(("x",), pa.float32(), "=", (inf,)))
    assert lake.table.scan(row_filter=condition).to_arrow().num_rows == 0


COUNTED: list[tuple[str, Any, int, int, int]] = [
    ("number", 11, 1, 2, 2),
    ("boolean", False, 3, 6, 4),
    ("int64", 2**62 - 1, 1, 2, 2),
    ("double", 9.0, 4, 5, 5),
    ("float_nan", 9.0, 8, 9, 9),  # seven with NaN, and one with the value
    ("decimal9_2", Decimal("0.01"), 1, 2, 2),
    ("digits", Decimal("0.123456789"), 1, 2, 2),
    ("date", date(1969, 12, 31), 1, 2, 2),
    ("utc", datetime(2024, 2, 29, 12, 34, 56, 789_001, UTC), 1, 2, 2),
    ("string", "p" * 32 + "a", 1, 3, 3),  # of two chunks with this prefix
    ("binary", b"c", 1, 10, 2),  # Delta has no bounds of binary columns, but counts NULL
]
"""A column, a value, and how many row groups, and files of Delta and of Iceberg, a filter for it reads."""


def test_bounds_let_readers_skip_what_cannot_match(
    file_target: list[str], delta_target: DeltaTable, iceberg_target: Lake
) -> None:
    largest = max(file_target, key=lambda path: Path(path).stat().st_size)
    fragment = next(ds.dataset(largest).get_fragments())
    kinds = {case.name: case.kind for case in awkward.CASES}
    unread = {name for name, *_ in COUNTED if not _arrow_reads_bounds(largest, name)}
    found = []
    for name, value, *_ in COUNTED:
        given = Filter((name,), kinds[name], "=", (value,))
        as_sql = filtering.sql_condition(given, filtering.datafusion_literal, "isnan")
        read = (
            fragment.split_by_row_group(filtering.arrow_condition(given)),
            delta_target.file_uris(file_pruning_predicate=as_sql),
            list(iceberg_target.table.scan(row_filter=filtering.iceberg_condition(given)).plan_files()),
        )
        found.append((name, value, *map(len, read)))
    assert [each[3:] if each[0] in unread else each for each in found] == [
        each[3:] if each[0] in unread else each for each in COUNTED
    ]


def _arrow_reads_bounds(path: str, name: str) -> bool:
    """Whether this release of Arrow reads the bounds of a column: not those of decimals in PySpark 3.5's."""
    group = pq.read_metadata(path).row_group(0)
    column = next(column for column in map(group.column, range(group.num_columns)) if column.path_in_schema == name)
    try:
        str(column.statistics)
    except pa.ArrowNotImplementedError:
        return False
    return True
