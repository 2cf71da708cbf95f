"""`upsert` and `delete` into Delta tables: types, refusals and versions of their own."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from outfall.errors import ConfigurationError, TargetLostError, ValueRefusedError
from outfall.tables import data_file
from outfall.tables.data_file import DataFile, EpochFiles
from outfall.testing import crash_at
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.integration.support.keyed_rows import COLUMNS, UPSERT, row, rows, upserting


def test_nested_values_and_every_other_type_pass_through_a_rewritten_file(shore: Shore) -> None:
    wide = pa.table(
        {
            "id": pa.array([1, 2, 3]),
            "decimal": pa.array([Decimal("1.10"), None, Decimal("-99999999999999999999.99")], pa.decimal128(38, 2)),
            "time": pa.array([datetime(1900, 1, 1, tzinfo=UTC), None, datetime(2300, 1, 1, tzinfo=UTC)],
                             pa.timestamp("us", "UTC")),
            "float": pa.array([float("inf"), None, -0.0], pa.float32()),
            "binary": pa.array([b"\x00", None, b""]),
            "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
            "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
            "map": pa.array([[("k", {"d": 1})], None, []], pa.map_(pa.string(), pa.struct([("d", pa.int64())]))),
            "structs": pa.array([[{"e": 1}, None], None, []]),
        }
    )  # fmt: skip
    write_deltalake(shore.path, wide)
    before = {each["id"]: each for each in shore.rows()}
    driver = shore.driver(write_mode="upsert", key_columns="id")
    news = wide.slice(0, 1).set_column(0, "id", pa.array([3])).to_batches()[0]
    driver.write(0, news)
    after = {each["id"]: each for each in shore.rows()}
    assert after == {1: before[1], 2: before[2], 3: {**before[1], "id": 3}}


def test_files_that_are_older_than_a_field_of_a_struct_are_rewritten(shore: Shore) -> None:
    def some(key: int, **inside: Any) -> pa.Table:
        return pa.table({"id": [key], "s": [inside], "l": [[inside]], "m": pa.array(
            [[("k", inside)]], pa.map_(pa.string(), pa.struct([(name, pa.int64()) for name in inside])))})  # fmt: skip

    write_deltalake(shore.path, pa.concat_tables([some(1, a=1), some(2, a=2)]))
    write_deltalake(shore.path, some(3, a=3, b=3), mode="append", schema_mode="merge")
    shore.driver(write_mode="upsert", key_columns="id").write(0, some(2, a=20, b=20).to_batches()[0])
    assert [(each["s"], each["l"][0], each["m"][0][1]) for each in shore.rows()] == [
        ({"a": a, "b": b},) * 3 for a, b in ((1, None), (20, 20), (3, 3))
    ]


def test_a_first_epoch_whose_record_was_removed_is_not_merged_again(
    shore: Shore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new files are in the table, and the staged ones in no version."""
    monkeypatch.setattr(data_file, "_FRESH", -1.0)  # an hour later
    shore.create(COLUMNS)
    with crash_at("table: committed"):
        upserting(shore, "log").write(0, rows(row(1)))
    entry = shore.path / "_delta_log" / f"{1:020}.json"
    lines = [line for line in entry.read_text().splitlines() if '"txn"' not in line]
    entry.write_text("\n".join(lines))
    with pytest.raises(TargetLostError, match="has no record of this step"):
        upserting(shore, "log").write(0, rows(row(1)))
    assert len(shore.versions) == 2


def test_a_restored_table_is_refused(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = upserting(shore)
    driver.write(0, rows(row(1)))
    driver.write(1, rows(row(1, 2)))
    shore.table.restore(1)
    with pytest.raises(TargetLostError, match="rolled it back to before version 2"):
        driver.write(2, rows(row(3)))
    assert shore.rows("seq") == [1]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "a change data feed"),
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.constraints.small": "id < 10"}, "a CHECK constraint"),
    ],
    ids=str,
)
def test_a_table_with_other_duties_is_refused_before_the_first_row(
    shore: Shore, change: dict[str, str], match: str
) -> None:
    shore.create(COLUMNS)
    log = shore.path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] |= change
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(ConfigurationError, match=match):
        upserting(shore).write(0, rows(row(1)))
    assert len(shore.versions) == 1


def test_a_value_that_its_insert_would_refuse_fails_the_task_unless_the_row_is_a_removal(shore: Shore) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string()), pa.field("v", pa.string(), False)])
    write_deltalake(shore.path, pa.table({"id": [1], "part": ["a"], "v": ["x"]}, schema=schema), partition_by=["part"])
    driver = shore.driver(write_mode="upsert", key_columns="id", delete_marker="gone")

    def some(part: str, value: str | None, gone: bool) -> pa.RecordBatch:
        return batch(id=[1], part=[part], v=pa.array([value], pa.string()), gone=[gone])

    for refused in (some("a", None, False), some("", "x", False)):
        with pytest.raises(ValueRefusedError, match=r"is NULL in row 0|is an empty string"):
            driver.write(0, refused)
    driver.write(0, some("", None, True))
    assert shore.rows() == []


def test_a_shallow_clone_is_refused(shore: Shore) -> None:
    shore.create(COLUMNS)
    shore.append(rows(row(1)).drop_columns(["gone"]))
    log = shore.path / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"file://{shore.directory}/other/x.parquet"
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(ConfigurationError, match="shallow clone"):
        upserting(shore).write(0, rows(row(1)))


def test_an_update_that_others_cannot_read_back_keeps_its_bounds(shore: Shore) -> None:
    """deltalake's own merge ignores NaN in its bounds, and rounds decimals inward."""
    shore.create({"id": "long", "d": "decimal(38,2)", "x": "double"})
    driver = shore.driver(write_mode="upsert", key_columns="id")
    great = Decimal("123456789012345678.93")

    def some(*ids: int) -> pa.RecordBatch:
        return batch(id=list(ids), d=pa.array([great] * len(ids), pa.decimal128(38, 2)), x=[float("nan")] * len(ids))

    driver.write(0, some(1, 2))
    driver.write(1, some(2))
    for added in shore.newest.files.values():
        found = json.loads(added["stats"], parse_float=Decimal)
        assert found["maxValues"]["d"] >= great
        assert "x" not in found["maxValues"]


def test_a_revocation_after_the_commit_leaves_the_files_of_the_epoch(shore: Shore) -> None:
    """The record is then of another version, which added no file."""
    shore.create(COLUMNS)
    upserting(shore).write(0, rows(row(1)))
    sink = shore.sink(**UPSERT)
    table = sink.load()
    assert table is not None
    (path,) = shore.newest.files
    directory, _, name = path.rpartition("/")
    incarnation = directory.split("/")[1]
    staged = DataFile(name=f"part-{0:010}-{0:05}-{0:05}-{incarnation}-g1-a0.parquet", size=1, rows=1)
    files = EpochFiles(
        directory=directory, root=table.files.area.root, layout=table.files.layout, files=(staged,), published=None
    )
    assert sink.mode.kept(files) == {name}
    record = table.record(incarnation)
    assert record is not None
    table.commit(files.without_files(), record.without(9))
    assert sink.mode.kept(files) is None
