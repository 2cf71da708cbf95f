"""A column names the table of each row: tables of both formats, read by another client."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from outfall.delta import DeltaSink
from outfall.errors import ConfigurationError, OutfallError, TargetError, TargetLostError, ValueRefusedError
from outfall.iceberg import IcebergSink
from outfall.spark import write
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import embedded, load, new_namespace

pytestmark = pytest.mark.thorough  # the default tests of many tables are in tests/unit/tables

COLUMNS = pa.schema({"id": pa.int64(), "text": pa.string()})


class ManyTables:
    """A place for tables of a format, with those that a sink has made."""

    def __init__(self, duck: Duck, directory: Path) -> None:
        self.duck = duck
        self.directory = directory

    def sink(self, **options: Any) -> Any:
        """Make a sink that creates the tables `t…`."""
        raise NotImplementedError

    def name(self, table: str) -> str:
        """Return how rows name a table."""
        raise NotImplementedError

    def read(self, table: str, columns: str = "id") -> list[Any]:
        """Return the rows that another client finds, sorted; none if the table does not exist."""
        raise NotImplementedError

    def drop(self, table: str) -> None:
        raise NotImplementedError

    def commits(self, table: str) -> int:
        """Return how many commits have added rows."""
        raise NotImplementedError

    def create(self, table: str) -> None:
        """Create a table without rows, as another client does."""
        raise NotImplementedError

    def rows(self, *pairs: tuple[int, str]) -> list[dict[str, Any]]:
        return [{"id": number, "text": f"{number}", "place": self.name(table)} for number, table in pairs]


class IcebergTables(ManyTables):
    def __init__(self, duck: Duck, directory: Path) -> None:
        super().__init__(duck, directory)
        self.catalog = embedded(directory)
        self.namespace = new_namespace(self.catalog)

    def sink(self, **options: Any) -> IcebergSink:
        given = {"table_column": "place", "allowed_tables": self.name("t*"), "create_table": "if_missing"}
        return IcebergSink(**{**given, "catalog_options": self.catalog, **options})

    def name(self, table: str) -> str:
        return f"{self.namespace}.{table}"

    def read(self, table: str, columns: str = "id") -> list[Any]:
        try:
            location = load(self.catalog).load_table(self.name(table)).metadata_location
        except NoSuchTableError:
            return []
        return sorted(self.duck.iceberg(location, columns))

    def drop(self, table: str) -> None:
        load(self.catalog).drop_table(self.name(table))

    def commits(self, table: str) -> int:
        return len(load(self.catalog).load_table(self.name(table)).metadata.snapshots)

    def create(self, table: str) -> None:
        load(self.catalog).create_table(self.name(table), COLUMNS)


class DeltaTables(ManyTables):
    def sink(self, **options: Any) -> DeltaSink:
        given = {"table_column": "place", "allowed_tables": self.name("t*"), "create_table": "if_missing"}
        return DeltaSink(self.directory, **{**given, **options})

    def name(self, table: str) -> str:
        return f"eu/{table}"

    def read(self, table: str, columns: str = "id") -> list[Any]:
        path = self.directory / "eu" / table
        return sorted(self.duck.delta(path, columns)) if DeltaTable.is_deltatable(str(path)) else []

    def drop(self, table: str) -> None:
        os.rename(self.directory / "eu" / table, self.directory / f"away-{table}")

    def commits(self, table: str) -> int:
        return DeltaTable(self.directory / "eu" / table).version()

    def create(self, table: str) -> None:
        DeltaTable.create(self.directory / "eu" / table, Schema.from_arrow(COLUMNS))


@pytest.fixture(params=[IcebergTables, DeltaTables], ids=["iceberg", "delta"])
def tables(request: pytest.FixtureRequest, duck: Duck, tmp_path: Path) -> ManyTables:
    (tmp_path / "tables").mkdir()
    made: ManyTables = request.param(duck, tmp_path / "tables")
    return made


Epochs = Sequence[Sequence[Sequence[tuple[int, str]]]]


@pytest.fixture
def run(tables: ManyTables) -> Callable[..., None]:
    """Write an epoch: the rows of its tasks, by number and table."""
    recovery = MemoryRecoveryConfig()

    def one(epoch: int, *tasks: Sequence[tuple[int, str]], **options: Any) -> None:
        LocalDriver(tables.sink(**options), recovery).run_epoch(epoch, [tables.rows(*task) for task in tasks])

    return one


Run = Callable[..., None]


def test_another_client_finds_the_rows_of_each_table_in_one_commit_per_epoch(tables: ManyTables, run: Run) -> None:
    run(0, [(0, "t1"), (1, "t2"), (2, "t1")], [(3, "t1")])
    run(1, [(4, "t3")], [(5, "t3"), (6, "t2")])
    assert [tables.read(name) for name in ("t1", "t2", "t3")] == [[(0,), (2,), (3,)], [(1,), (6,)], [(4,), (5,)]]
    assert tables.read("t1", "id, text") == [(0, "0"), (2, "2"), (3, "3")]
    assert [tables.commits(name) for name in ("t1", "t2", "t3")] == [1, 2, 1]


@pytest.mark.parametrize(
    "point", ["table: made or changed", "before PREPARED", "after PREPARED", "table: committed", "after COMMITTED"]
)
def test_each_row_is_there_once_wherever_the_driver_dies(tables: ManyTables, run: Run, point: str) -> None:
    tasks: Epochs = [[[(0, "t1"), (1, "t2")]], [[(2, "t3"), (3, "t1")], [(4, "t3")]]]
    for epoch, rows in enumerate(tasks):
        with crash_at(point):
            run(epoch, *rows)
        run(epoch, *rows)
    assert [tables.read(name) for name in ("t1", "t2", "t3")] == [[(0,), (3,)], [(1,)], [(2,), (4,)]]


def test_a_table_that_was_dropped_is_not_created_again(tables: ManyTables, run: Run) -> None:
    run(0, [(0, "t1"), (1, "t2")])
    run(1, [(2, "t1")])
    tables.drop("t2")
    with pytest.raises(TargetLostError, match="epoch 0 was committed to it"):
        run(2, [(3, "t1"), (4, "t2")])
    assert (tables.read("t1"), tables.read("t2")) == ([(0,), (2,)], [])


def test_a_table_that_was_created_again_without_rows_is_written_as_a_new_one(tables: ManyTables, run: Run) -> None:
    run(0, [(0, "t1"), (1, "t2")])
    tables.drop("t2")
    run(1, [(2, "t1")])
    tables.create("t2")
    with crash_at("before PREPARED"):
        run(2, [(3, "t1"), (4, "t2")])
    run(2, [(3, "t1")])  # its clean-up commits to the table, without rows
    run(3, [(5, "t2")])
    run(4, [(6, "t2")])
    assert (tables.read("t1"), tables.read("t2")) == ([(0,), (2,), (3,)], [(5,), (6,)])


@pytest.mark.parametrize("tables", [IcebergTables], indirect=True, ids=["iceberg"])
@pytest.mark.parametrize("shared", ["write.data.path", "location after a rename"])
def test_tables_with_one_directory_keep_the_files_of_each_other(tables: ManyTables, run: Run, shared: str) -> None:
    assert isinstance(tables, IcebergTables)
    catalog = load(tables.catalog)
    if shared == "write.data.path":
        for name in ("t1", "t2"):
            properties = {shared: f"file://{tables.directory}/shared"}
            catalog.create_table(tables.name(name), COLUMNS, properties=properties)
    else:
        catalog.create_table(tables.name("t1"), COLUMNS)
        catalog.rename_table(tables.name("t1"), tables.name("t2"))
    for epoch, table in enumerate(["t1", "t2", "t1", "t2"]):
        with crash_at("before PREPARED"):
            run(epoch, [(100, "t1"), (101, "t2")])
        run(epoch, [(epoch, table)])
    assert (tables.read("t1"), tables.read("t2")) == ([(0,), (2,)], [(1,), (3,)])
    assert len(list(tables.directory.rglob("part-*.parquet"))) == 4


def test_rows_are_upserted_into_each_table(tables: ManyTables, run: Run) -> None:
    keys = {"write_mode": "upsert", "key_columns": "id"}
    run(0, [(0, "t1"), (0, "t2"), (1, "t2")], **keys)
    run(1, [(0, "t2"), (2, "t2")], [(3, "t1")], **keys)
    assert [tables.read(name) for name in ("t1", "t2")] == [[(0,), (3,)], [(0,), (1,), (2,)]]


def test_each_table_has_its_keys_and_gets_its_columns(tables: ManyTables) -> None:
    one, two, other = map(tables.name, ("t1", "t2", "t3"))
    options = {
        "write_mode": "upsert", "unknown_columns": "leave_out_null", "table_keys": {one: "id", two: ["id", "text"]},
        "table_columns": {one: "text", two: "more"},
    }  # fmt: skip
    driver = LocalDriver(tables.sink(**options), MemoryRecoveryConfig())

    def row(table: str, text: str, more: int | None = None) -> dict[str, Any]:
        return {"id": 1, "text": text, "place": table, "more": more}

    driver.run_epoch(0, [[row(one, "x"), row(one, "y"), row(two, "x", 5), row(two, "y", 6), row(two, "x", 7)]])
    driver.run_epoch(1, [[row(one, "z"), row(two, "y", 8)]])
    assert tables.read("t1", "id, text") == [(1, "z")]
    assert tables.read("t2", "id, text, more") == [(1, "x", 7), (1, "y", 8)]
    with pytest.raises(ConfigurationError, match=r"the key of the table '.*t3' is not known.*table_keys"):
        driver.run_epoch(2, [[row(other, "x")]])


def test_rows_name_no_table_elsewhere(tables: ManyTables, run: Run) -> None:
    for table in ("other", "../t1", "t1/../../x", "x.t1", "t1/_delta_log", ".t", "t?x", "t#x", "t\n1", "t "):
        with pytest.raises(ValueRefusedError, match=r"row 0 of the batch"):
            run(0, [(0, table)])
    assert not list(tables.directory.rglob("*.parquet"))


def test_what_failed_attempts_left_is_found_and_removed(tables: ManyTables, run: Run) -> None:
    with crash_at("before PREPARED"):
        run(0, [(0, "t1"), (1, "t2")])
    assert len(list(tables.directory.rglob("part-*.parquet"))) == 2
    run(0, [(0, "t3")])
    assert len(list(tables.directory.rglob("part-*.parquet"))) == 1


def test_the_connection_check_counts_the_tables(tables: ManyTables, run: Run) -> None:
    run(0, [(0, "t1"), (1, "t2")])
    assert "allowed_tables has 2 tables; write access was not tested" in tables.sink().check_connection()


@pytest.mark.parametrize("tables", [DeltaTables], indirect=True, ids=["delta"])
def test_no_link_leads_rows_elsewhere(tables: ManyTables, run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tables.directory / "eu").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match="is a link"):
        run(0, [(0, "t1")])
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("tables", [DeltaTables], indirect=True, ids=["delta"])
def test_no_table_is_within_another(tables: ManyTables, run: Run) -> None:
    write_deltalake(tables.directory, pa.table({"id": [1]}))
    with pytest.raises(ConfigurationError, match="is a table"):
        run(0, [(0, "t1")])


def test_a_missing_table_is_named_with_its_row(tables: ManyTables, run: Run) -> None:
    with pytest.raises(OutfallError, match="does not exist") as caught:
        run(0, [(0, "t1")], create_table="never")
    assert f"The table {tables.name('t1')!r} is that of row 0 of the batch." in caught.value.__notes__


@pytest.mark.spark
def test_tasks_of_spark_make_and_write_the_tables(tables: ManyTables, spark: SparkSession, tmp_path: Path) -> None:
    place = f"concat('{tables.name('t')}', id % 7)"
    rows = spark.range(700).selectExpr("id", "string(id) AS text", f"{place} AS place").repartition(3)
    for epoch in range(2):
        write(rows, tables.sink(), epoch=epoch, recovery=str(tmp_path / "recovery"))
    for number in range(7):
        wanted = sorted(2 * [(each,) for each in range(number, 700, 7)])
        assert tables.read(f"t{number}") == wanted
        assert tables.commits(f"t{number}") == 2


def test_tasks_that_meet_at_a_new_table_create_it_once(tables: ManyTables) -> None:
    rows = pa.schema({"id": pa.int64(), "text": pa.string()})
    for number in range(20):
        table, together = f"t{number}", Barrier(3)

        def create(name: str = tables.name(table), together: Barrier = together) -> str:
            one = tables.sink().of_table(name)
            together.wait()
            one.patiently("creating", lambda: one.create(rows))
            return str(one.load().files.layout.table)

        with ThreadPoolExecutor(3) as tasks:
            found = [task.result() for task in [tasks.submit(create) for _ in range(3)]]
        assert len(set(found)) == 1
        assert tables.commits(table) == 0
