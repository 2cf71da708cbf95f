"""`upsert` and `delete` into Iceberg tables: columns by id, partitions of any spec, delete files, branches, history."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, UUIDType

from outfall.errors import ConfigurationError, EpochAbandonedError, TargetLostError, ValueRefusedError
from outfall.tables import data_file
from outfall.tables.data_file import DataFile, EpochFiles
from outfall.tables.stored_rows import StoredRows
from outfall.testing import crash_at
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_deletes import delete_positions, delete_values
from tests.integration.support.iceberg_epochs import Lake
from tests.integration.support.keyed_rows import COLUMNS, UPSERT, row, rows, upserting
from tests.one_each import thorough


def by_id(lake: Lake, **options: Any) -> BatchDriver:
    return lake.driver(write_mode="upsert", key_columns="id", **options)


def scanned(lake: Lake) -> list[dict[str, Any]]:
    """Return the rows as pyiceberg reads them."""
    found: list[dict[str, Any]] = lake.table.scan().to_arrow().to_pylist()
    return sorted(found, key=repr)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The data files that merges have read."""
    found: set[str] = set()
    batches = StoredRows.batches

    def watched(self: Any, names: Sequence[str]) -> Any:
        found.add(self.path)
        return batches(self, names)

    monkeypatch.setattr(StoredRows, "batches", watched)
    return found


# --- which files have the keys


LAST = datetime(9999, 12, 31, tzinfo=UTC).replace(tzinfo=None)
START = datetime(1969, 12, 31, 23, tzinfo=UTC)
MORE_TERMS = ["hour: t", "month: t", "year: t", "bucket[4]: t", "t", "k", "truncate[2]: k"]


@pytest.mark.thorough
@pytest.mark.parametrize("term", ["day: t", *map(thorough, MORE_TERMS), "bucket[3]: k"])
@pytest.mark.parametrize("seed", [0, thorough(1)])
def test_keys_are_found_in_partitions_of_each_transform_and_in_those_of_former_specs(
    lake: Lake, term: str, seed: int
) -> None:
    chance = random.Random(seed)
    lake.create(pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64())]))
    driver = lake.driver(write_mode="upsert", key_columns=["k", "t"])
    table: dict[Any, int] = {}
    for epoch in range(6):
        if epoch == 2:
            lake.partition(term)
        if epoch == 4:
            lake.partition("bucket[2]: k" if term != "bucket[2]: k" else "k")
        keys = {
            (chance.choice("abc") * chance.randint(0, 3), START.replace(hour=chance.randint(0, 23)))
            for _ in range(chance.randint(1, 12))
        }
        table |= dict.fromkeys(keys, epoch)
        listed = sorted(keys)
        driver.write(epoch, batch(k=[k for k, _ in listed], t=pa.array([t for _, t in listed],
                     pa.timestamp("us", "UTC")), v=[epoch] * len(keys)))  # fmt: skip
        assert {(each["k"], each["t"]): each["v"] for each in lake.rows()} == table
        assert len(lake.rows()) == len(table)
    assert {(each["k"], each["t"]): each["v"] for each in scanned(lake)} == table


@pytest.mark.parametrize("term", ["bucket[16]: id", "truncate[10]: id", "id"])
def test_partitions_keep_files_from_being_read(lake: Lake, read: set[str], term: str) -> None:
    lake.create(pa.schema([("id", pa.int64()), ("v", pa.int64())]), term, **{
        "write.metadata.metrics.default": "none"})  # fmt: skip
    driver = by_id(lake)
    driver.write(0, batch(id=list(range(100)), v=[0] * 100))
    read.clear()
    driver.write(1, batch(id=[37], v=[1]))
    assert len(read) == 1
    assert lake.rows("v").count(1) == 1
    assert len(lake.rows()) == 100


def test_bounds_that_are_cut_off_hide_no_string(lake: Lake) -> None:
    lake.create(pa.schema([("id", pa.string()), ("v", pa.int64())]))
    driver = by_id(lake)
    ends = ["", "a" * 40, "a" * 16, "ü" * 30, "\U0010ffff" * 20, "\ud7ff" * 17, "\uffff" * 16 + "z", "zz"]
    for epoch, key in enumerate(ends):
        driver.write(epoch, batch(id=[key, key + "!"], v=[0, 0]))
    driver.write(8, batch(id=ends, v=[1] * len(ends)))
    assert sorted(lake.rows("v")) == [0] * len(ends) + [1] * len(ends)
    driver.write(9, batch(id=["q"], v=[2]))
    assert lake.rows("v").count(2) == 1


def test_a_key_that_was_widened_is_found_by_its_former_bounds(lake: Lake, read: set[str]) -> None:
    lake.create(Schema(NestedField(1, "id", IntegerType()), NestedField(2, "v", LongType())))
    for begin in (-5, 100):
        lake.append(batch(id=pa.array([begin, begin + 1], pa.int32()), v=[0, 0]))
    with lake.table.update_schema() as update:
        update.update_column("id", LongType())
    by_id(lake).write(0, batch(id=[-5, 1 << 40], v=[1, 1]))
    assert len(read) == 1
    assert sorted((each["id"], each["v"]) for each in scanned(lake)) == [
        (-5, 1), (-4, 0), (100, 0), (101, 0), (1 << 40, 1)
    ]  # fmt: skip


# --- columns


def test_every_type_passes_through_a_rewritten_file(lake: Lake, duck: Duck) -> None:
    schema = pa.schema([
        ("id", pa.int64()), ("d", pa.decimal128(38, 2)), ("t", pa.timestamp("us")), ("z", pa.timestamp("us", "UTC")),
        ("c", pa.time64("us")), ("f", pa.float32()), ("x", pa.float64()), ("b", pa.binary()), ("fix", pa.binary(3)),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])),
        ("l", pa.list_(pa.struct([("e", pa.int32())]))), ("m", pa.map_(pa.string(), pa.struct([("v", pa.int64())]))),
        ("flag", pa.bool_()), ("u", pa.uuid()),
    ])  # fmt: skip
    lake.create(schema)
    full: dict[str, Any] = {
        "d": Decimal("123456789012345678.93"), "t": LAST, "z": datetime(1900, 1, 1, tzinfo=UTC),
        "c": time(23, 59, 59, 999999), "f": float("nan"), "x": float("-inf"), "b": b"\x00\xff", "fix": b"abc",
        "s": {"a": 1, "b": {"c": "x"}}, "l": [{"e": 1}, None], "m": [("k", {"v": 1}), ("n", None)], "flag": True,
        "u": uuid.UUID(int=7).bytes,
    }  # fmt: skip
    given = pa.RecordBatch.from_pylist([{"id": 1, **full}, {"id": 2, **full}, {"id": 3}], schema=schema)
    driver = by_id(lake, delete_marker="gone")
    driver.write(0, given.append_column("gone", pa.array([False] * 3)))
    before = {each["id"]: repr(each) for each in scanned(lake)}
    driver.write(1, batch(id=[2, 4], gone=[True, False]))
    after = {each["id"]: repr(each) for each in scanned(lake)}
    assert {1: before[1], 3: before[3]} == {number: text for number, text in after.items() if number != 4}
    metadata = lake.table.metadata_location
    conditions = {"d > 123456789012345678.92": 1, "t > '9999-01-01'": 1, "z < '1901-01-01'": 1, "id = 2": 0, "flag": 1}
    for condition, count in conditions.items():
        assert duck.query(f"SELECT count(*) FROM iceberg_scan('{metadata}') WHERE {condition}") == [(count,)], condition


def test_columns_are_found_by_id_in_files_that_are_older_than_their_names(lake: Lake) -> None:
    inside = pa.struct([("a", pa.int64()), ("b", pa.int64()), ("old", pa.int64())])
    lake.create(pa.schema([("id", pa.int64()), ("x", pa.string()), ("y", pa.string()), ("s", inside),
                           ("l", pa.list_(inside))]))  # fmt: skip
    value = {"a": 1, "b": 2, "old": 3}
    driver = by_id(lake)
    driver.write(0, pa.RecordBatch.from_pylist(
        [{"id": number, "x": "x", "y": "y", "s": value, "l": [value]} for number in (1, 2)],
        schema=lake.table.schema().as_arrow()))  # fmt: skip
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("x", "w")
        update.rename_column("y", "x")
        for path in (("s",), ("l", "element")):
            update.rename_column((*path, "a"), "n")
            update.delete_column((*path, "old"))
    with lake.table.update_schema() as update:
        for path in (("s",), ("l", "element")):
            update.add_column((*path, "old"), LongType())
            update.add_column((*path, "a"), StringType())
    driver.write(1, batch(id=[1], x=["new"]))
    kept = {"n": 1, "b": 2, "old": None, "a": None}
    assert scanned(lake) == [
        {"id": number, "w": "x", "x": text, "s": kept, "l": [kept]} for number, text in ((1, "new"), (2, "y"))
    ]


def test_uuid_keys_are_found(lake: Lake) -> None:
    lake.create(Schema(NestedField(1, "id", UUIDType()), NestedField(2, "v", LongType())), "bucket[4]: id")
    ids = [uuid.UUID(int=number).bytes for number in range(5)]
    driver = by_id(lake)
    for epoch in range(2):
        driver.write(epoch, batch(id=ids, v=[epoch] * 5))
    assert lake.rows("v") == [1] * 5


def test_a_column_renamed_during_an_epoch_has_it_written_anew(lake: Lake) -> None:
    lake.make(COLUMNS)
    driver = upserting(lake)
    driver.write(0, rows(row(1)))

    def rename() -> None:
        with lake.table.update_schema() as update:
            update.rename_column("text", "words")

    with pytest.raises(EpochAbandonedError, match="its columns have changed"):
        driver.write(1, rows(row(1, 2, text="ours")), between=rename)
    assert lake.rows("words") == ["t1"]


def test_staged_rows_are_no_data_files_of_a_sink_that_appends(lake: Lake) -> None:
    lake.make(COLUMNS)
    given = rows(row(1, gone=False), row(2, gone=True))
    with crash_at("after PREPARED"):
        upserting(lake, "log").write(0, given)
    lake.driver("log").write(0, given.drop_columns(["gone"]))
    assert lake.rows("id") == [1, 2]


def test_a_value_that_its_insert_would_refuse_fails_the_task_unless_the_row_is_a_removal(lake: Lake) -> None:
    lake.create(Schema(NestedField(1, "id", LongType()), NestedField(2, "v", StringType(), required=True)))
    driver = by_id(lake, delete_marker="gone")
    with pytest.raises(ValueRefusedError, match="is NULL in row 0"):
        driver.write(0, batch(id=[1], v=pa.array([None], pa.string()), gone=[False]))
    driver.write(0, batch(id=[1, 2], v=pa.array([None, "x"], pa.string()), gone=[True, False]))
    assert lake.rows("id") == [2]


# --- files of others


def test_rows_that_others_deleted_by_position_stay_deleted(lake: Lake) -> None:
    lake.make(COLUMNS)
    lake.append(rows(*(row(number) for number in range(6))).drop_columns(["gone"]))
    (task,) = lake.table.scan().plan_files()
    delete_positions(lake.table, task.file.file_path, [0, 3])
    upserting(lake).write(0, rows(row(3, 2), row(4, 2, text="new"), row(5, 2, gone=True)))
    assert [(each["id"], each["text"]) for each in scanned(lake)] == [(1, "t1"), (2, "t2"), (3, "t3"), (4, "new")]


def equality_deletes(lake: Lake) -> None:
    delete_values(lake.table, "id", [1])


def files_without_ids(lake: Lake) -> None:
    path = f"{lake.directory}/foreign.parquet"
    pq.write_table(pa.Table.from_batches([rows(row(1)).drop_columns(["gone"])]), path)
    lake.table.add_files([f"file://{path}"])


def partition_of_doubles(lake: Lake) -> None:
    lake.partition("x")


REFUSED = {equality_deletes: "has equality deletes", files_without_ids: "have no field ids",
           partition_of_doubles: "partitioned by a floating-point column"}  # fmt: skip


@pytest.mark.parametrize(("change", "match"), REFUSED.items(), ids=[each.__name__ for each in REFUSED])
def test_a_table_that_cannot_be_merged_into_is_refused_and_keeps_its_rows(
    lake: Lake, change: Callable[[Lake], None], match: str
) -> None:
    lake.make(COLUMNS | {"x": "double"})
    lake.append(rows(row(1)).drop_columns(["gone"]).append_column("x", pa.array([1.0])))
    change(lake)
    before = lake.table.metadata.current_snapshot_id
    with pytest.raises(ConfigurationError, match=match):
        upserting(lake, "log").write(0, rows(row(1, 2)).append_column("x", pa.array([2.0])))
    assert lake.table.metadata.current_snapshot_id == before


# --- commits


def test_a_branch_is_merged_into_alone(lake: Lake) -> None:
    lake.make(COLUMNS)
    upserting(lake).write(0, rows(row(1), row(2)))
    lake.table.manage_snapshots().create_branch(lake.head().id, "side").commit()
    upserting(lake, branch="side", on_existing="resume").write(0, rows(row(1, 2, text="side"), row(2, 2, gone=True)))
    assert lake.rows("text") == ["t1", "t2"]
    assert [each["text"] for each in lake.files.rows(lake.head("side"))] == ["side"]


@pytest.mark.parametrize("merges", ["true", thorough("false")])
def test_manifests_do_not_add_up(lake: Lake, merges: str) -> None:
    lake.make(COLUMNS, "part")
    with lake.table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "5", "commit.manifest-merge.enabled": merges})
    driver = upserting(lake, key_columns=["id", "part"])
    for epoch in range(15):
        driver.write(epoch, rows(*(row(number, epoch, part) for number in range(3) for part in "ab"), row(epoch + 10)))
        manifests = lake.table.current_snapshot().manifests(lake.table.io)  # type: ignore[union-attr]
        assert len(manifests) <= 8
    assert len(lake.rows()) == 6 + 15
    assert len(scanned(lake)) == 21


def test_totals_of_the_summary_are_those_of_the_files(lake: Lake) -> None:
    lake.make(COLUMNS, "part")
    driver = upserting(lake)
    for epoch in range(4):
        driver.write(epoch, rows(*(row(number, epoch, "abcd"[number % (epoch + 1)]) for number in range(epoch, 9))))
        head = lake.head()
        assert int(head.summary["total-records"]) == sum(file["record_count"] for file in head.files) == 9
        assert int(head.summary["total-data-files"]) == len(head.files)


def test_a_table_that_was_rolled_back_is_refused(lake: Lake) -> None:
    lake.make(COLUMNS)
    driver = upserting(lake)
    driver.write(0, rows(row(1)))
    first = lake.head().id
    driver.write(1, rows(row(1, 2)))
    lake.table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TargetLostError, match="rolled back"):
        driver.write(2, rows(row(3)))
    assert lake.rows("seq") == [1]


def test_a_first_epoch_whose_record_was_removed_is_not_merged_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new files are in the table, and the staged ones in no snapshot."""
    monkeypatch.setattr(data_file, "_FRESH", -1.0)  # an hour later
    lake.make(COLUMNS)
    with crash_at("table: committed"):
        upserting(lake, "log").write(0, rows(row(1)))
    names = [name for name in lake.files.properties if name.startswith("outfall.step.")]
    with lake.table.transaction() as transaction:
        transaction.remove_properties(*names)
    with pytest.raises(TargetLostError, match="has no record of this step"):
        upserting(lake, "log").write(0, rows(row(1)))
    assert lake.commits == 1


def test_a_revocation_after_the_commit_leaves_the_files_of_the_epoch(lake: Lake) -> None:
    """The record is then of another snapshot, which added no file."""
    lake.make(COLUMNS)
    upserting(lake).write(0, rows(row(1)))
    sink = lake.sink(**UPSERT)
    table = sink.load()
    assert table is not None
    (path,) = lake.head().paths
    root = table.files.area.root.removeprefix("file://")
    directory = str(path.parent).removeprefix(f"{root}/")
    incarnation = directory.split("/")[1]
    staged = DataFile(name=f"part-{0:010}-{0:05}-{0:05}-{incarnation}-g1-a0.parquet", size=1, rows=1)
    files = EpochFiles(
        directory=directory, root=table.files.area.root, layout=table.files.layout, files=(staged,), published=None
    )
    assert sink.mode.kept(files) == {path.name}
    record = table.record(incarnation)
    assert record is not None
    table.commit(files.without_files(), record.without(9))
    assert sink.mode.kept(files) is None
