"""`upsert` and `delete`: what the table holds after epochs, compared with rows that arrive one by one."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake

from outfall.delta import DeltaSink
from outfall.errors import ConfigurationError, EpochAbandonedError, TargetLostError, ValueRefusedError
from outfall.tables import data_file
from outfall.tables import merge as merging
from outfall.tables.data_file import DataFile, EpochFiles
from outfall.tables.stored_rows import StoredRows
from outfall.testing import crash_at
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.delta_epochs import Shore

COLUMNS = {"id": "long", "part": "string", "seq": "long", "text": "string"}
SCHEMA = pa.schema(
    [("id", pa.int64()), ("part", pa.string()), ("seq", pa.int64()), ("text", pa.string()), ("gone", pa.bool_())]
)

Row = dict[str, Any]

UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id", "order_column": "seq", "delete_marker": "gone"}


def rows(*given: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"part": "a", **row} for row in given], schema=SCHEMA)


def row(number: int, seq: int | None = 1, part: str | None = "a", gone: bool | None = None, text: str = "") -> Row:
    return {"id": number, "seq": seq, "part": part, "gone": gone, "text": text or f"t{number}"}


def upserting(shore: Shore, recovery: str | None = None, **options: Any) -> BatchDriver:
    return shore.driver(recovery, **{**UPSERT, **options})


def arrive(table: dict[Any, Row], given: Row, keys: Sequence[str]) -> None:
    """Change the table as one row does that arrives alone. Its keys are unique, and no key is NULL."""
    key = tuple(given[name] for name in keys)
    theirs = table.get(key)
    newer = theirs is not None and theirs["seq"] is not None and (given["seq"] is None or theirs["seq"] > given["seq"])
    if newer:
        return
    if given["gone"]:
        table.pop(key, None)
    else:
        table[key] = {name: value for name, value in given.items() if name != "gone"}


@pytest.mark.parametrize("keys", [["id"], ["id", "part"], ["part", "id"]], ids=str)
@pytest.mark.parametrize("partitioned", [(), ("part",)], ids=["unpartitioned", "partitioned"])
@pytest.mark.parametrize("seed", range(2))
def test_epochs_come_to_what_their_rows_come_to_one_by_one(
    shore: Shore, keys: list[str], partitioned: tuple[str, ...], seed: int
) -> None:
    chance = random.Random(seed)
    shore.create(COLUMNS, *partitioned)
    driver = upserting(shore, key_columns=keys)
    table: dict[Any, Row] = {}
    for epoch in range(8):
        given = [
            row(chance.randint(1, 30), chance.choice([None, *range(20)]), chance.choice("abc"), chance.random() < 0.2,
                f"{epoch}/{number}") for number in range(chance.choice([1, 5, 40]))
        ]  # fmt: skip
        driver.write(epoch, *(rows(*given[begin : begin + 15]) for begin in range(0, len(given), 15)))
        for each in sorted(given, key=lambda each: (each["seq"] is not None, each["seq"] or 0)):
            arrive(table, each, keys)
        found = {tuple(each[name] for name in keys): each for each in shore.rows()}
        # Between tasks any row of equal order may win, and here they have an order.
        assert found == table, f"epoch {epoch}"
        assert len(found) == len(shore.rows())
    assert shore.left_over() == set()
    assert {version.number for version in shore.versions} == set(range(9))


def test_a_delete_removes_rows_by_their_keys_and_nothing_else(shore: Shore) -> None:
    shore.create(COLUMNS, "part")
    shore.append(rows(row(1), row(2), row(3, part="b"), row(4, part=None)).drop_columns(["gone"]))
    driver = shore.driver(write_mode="delete", key_columns=["id", "part"])
    found = driver.write(0, batch(id=[1, 2, 3, 4, 9], part=["a", "b", "b", None, "a"], extra=[1, 2, 3, 4, 5]))
    assert shore.rows("id") == [2, 4]
    assert found.counts["rows_deleted"] == found.counts["rows_changed"] == 2


def test_a_row_without_a_key_equals_no_row_of_the_table_and_is_one_within_an_epoch(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = upserting(shore)
    for epoch in range(2):
        driver.write(epoch, rows({"id": None, "seq": 1, "text": "a"}, {"id": None, "seq": 2, "text": "b"}))
    assert shore.rows("text") == ["b", "b"]
    driver.write(2, rows({"id": None, "seq": 9, "gone": True}))
    assert shore.rows("text") == ["b", "b"]


def test_all_rows_of_another_writer_with_a_key_change_together(shore: Shore) -> None:
    shore.create(COLUMNS, "part")
    for part in "ab":
        shore.append(rows(row(1, 5, part), row(2, 5, part)).drop_columns(["gone"]))
    driver = upserting(shore)
    driver.write(0, rows(row(1, 6, "c", text="new"), row(2, 6, "c", gone=True)))
    assert [(each["id"], each["part"], each["text"]) for each in shore.rows()] == [(1, "c", "new")] * 2


def test_update_columns_leave_the_others_of_an_existing_row(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = upserting(shore, update_columns="text")
    driver.write(0, rows(row(1, 1, "a", text="first"), row(2, 1, "a")))
    driver.write(1, rows(row(1, 2, "b", text="second"), row(2, 2, gone=True), row(2, 3, "c", text="again")))
    assert [(each["part"], each["seq"], each["text"]) for each in shore.rows()] == [
        ("a", 2, "second"),
        ("c", 3, "again"),
    ]


def test_columns_that_the_rows_lack_stay_when_a_row_is_updated_and_are_null_in_a_new_one(shore: Shore) -> None:
    shore.create(COLUMNS | {"more": "string"})
    shore.append(batch(id=[1], part=["a"], seq=[1], text=["x"], more=["kept"]))
    upserting(shore).write(0, rows(row(1, 2), row(2, 2)))
    assert [each["more"] for each in shore.rows()] == ["kept", None]


def test_names_in_another_case_and_with_quotes_find_their_columns(shore: Shore) -> None:
    odd = 'the "Key" of `x`.y'
    shore.create({odd: "long", "SEQ": "long", "Text": "string"})
    driver = shore.driver(write_mode="upsert", key_columns=[odd.lower()], order_column="seq", delete_marker="GONE")

    def some(key: int, seq: int, text: str, gone: bool = False) -> pa.RecordBatch:
        return batch(**{odd: [key], "seq": [seq], "text": [text], "gone": [gone]})

    driver.write(0, some(1, 1, "a"), some(2, 1, "b"))
    driver.write(1, some(1, 2, "c"), some(2, 2, "d", gone=True))
    assert [each["Text"] for each in shore.rows()] == ["c"]


KEYS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("byte", pa.int8(), [-1, 1, 2]),
    ("string", pa.string(), ["", "a b/ü%", "x" * 200]),
    ("binary", pa.binary(), [b"", b"\x00\xff", b"a"]),
    ("boolean", pa.bool_(), [True, False]),
    ("decimal(38,2)", pa.decimal128(38, 2), [Decimal("123456789012345678.91"), Decimal("123456789012345678.92")]),
    ("date", pa.date32(), [date(1, 1, 1), date(2020, 2, 29), date(9999, 12, 31)]),
    ("timestamp", pa.timestamp("us", "UTC"), [datetime(1900, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 0, 1, UTC)]),
]


@pytest.mark.parametrize(("kind", "arrow", "values"), KEYS, ids=[kind for kind, *_ in KEYS])
@pytest.mark.parametrize("partitioned", [False, True], ids=["in_files", "partition"])
def test_keys_of_each_type_are_found(
    shore: Shore, kind: str, arrow: pa.DataType, values: list[Any], partitioned: bool
) -> None:
    if partitioned and kind == "binary":
        pytest.skip("no table is partitioned by binary columns")
    values = [value for value in values if not (partitioned and value == "")]
    shore.create({"k": kind, "v": "string"}, *(["k"] if partitioned else []))
    driver = shore.driver(write_mode="upsert", key_columns="k", delete_marker="gone")
    for epoch, gone in enumerate([False, False, True]):
        keys = pa.array(values if not gone else values[1:], arrow)
        driver.write(epoch, batch(k=keys, v=[f"e{epoch}"] * len(keys), gone=[gone] * len(keys)))
        wanted = [(value, f"e{epoch}") for value in values] if not gone else [(values[0], "e1")]
        assert sorted(((each["k"], each["v"]) for each in shore.rows()), key=repr) == sorted(wanted, key=repr)


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


def test_columns_are_added_also_while_an_epoch_is_recorded(shore: Shore) -> None:
    shore.create(COLUMNS)
    upserting(shore, "log").write(0, rows(row(1), row(2)))
    more = rows(row(1, 2), row(3)).append_column("more", pa.array(["m1", "m3"]))
    with crash_at("table: committing"):
        upserting(shore, "log", schema_evolution="add_columns").write(1, more)
    shore.table.alter.add_columns([Field.from_arrow(pa.field("theirs", pa.string()))])
    upserting(shore, "log", schema_evolution="add_columns").write(1, more)
    assert [(each["id"], each["seq"], each["more"], each["theirs"]) for each in shore.rows()] == [
        (1, 2, "m1", None), (2, 1, None, None), (3, 1, "m3", None),
    ]  # fmt: skip


def test_a_missing_table_is_created_and_overwrite_replaces_all_rows(shore: Shore) -> None:
    upserting(shore, create_table="if_missing", partition_by="part").write(0, rows(row(1), row(2)))
    assert shore.newest.columns.keys() == COLUMNS.keys()
    upserting(shore, on_existing="overwrite").write(0, rows(row(2, 0), row(2, 1, text="x"), row(3, gone=True)))
    assert [(each["id"], each["text"]) for each in shore.rows()] == [(2, "x")]
    upserting(shore, on_existing="overwrite").write(0)
    assert shore.rows() == []


def test_only_files_that_change_are_rewritten(shore: Shore) -> None:
    shore.create(COLUMNS, "part")
    driver = upserting(shore, key_columns=["id", "part"])
    driver.write(0, rows(*(row(number, 5, part) for number in range(10) for part in "abc")))
    before = set(shore.newest.files)
    result = driver.write(1, rows(row(3, 6, "b"), row(4, 1, "c"), row(99, 1, "c", gone=True)))
    assert len(before & set(shore.newest.files)) == 2
    assert {name: result.counts[name] for name in ("rows_changed", "rows_updated", "files_replaced")} == {
        "rows_changed": 1, "rows_updated": 1, "files_replaced": 1,
    }  # fmt: skip
    driver.write(2, rows(row(4, 1, "c")))
    assert set(shore.versions[-1].files) == set(shore.versions[-2].files)


def test_bounds_of_keys_keep_files_from_being_read(shore: Shore, monkeypatch: pytest.MonkeyPatch) -> None:
    shore.create(COLUMNS)
    for begin in (0, 100, 200):
        shore.append(rows(*(row(begin + number) for number in range(10))).drop_columns(["gone"]))
    read: list[str] = []
    batches = StoredRows.batches

    def watched(self: Any, names: Sequence[str]) -> Any:
        read.append(self.path)
        return batches(self, names)

    monkeypatch.setattr(StoredRows, "batches", watched)
    upserting(shore).write(0, rows(row(105, 2), row(150, 2)))
    assert len(set(read)) == 1
    assert len(shore.rows()) == 31


@pytest.mark.parametrize("options", [UPSERT, {"write_mode": "delete", "key_columns": "id"}], ids=["upsert", "delete"])
def test_a_writer_between_load_and_commit_is_gone_on_from(
    shore: Shore, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shore.create(COLUMNS)
    shore.append(rows(row(1, 1), row(2, 1)).drop_columns(["gone"]))
    run, others = merging.Merge.run, [rows(row(1, 1), row(70)).drop_columns(["gone"])]

    def overtaken(self: Any, files: Any) -> None:
        run(self, files)
        if others:
            shore.append(others.pop())

    monkeypatch.setattr(merging.Merge, "run", overtaken)
    shore.driver(**options).write(0, rows(row(1, 2, text="ours")))
    ones = [each["text"] for each in shore.rows() if each["id"] == 1]
    assert ones == (["ours", "ours"] if options is UPSERT else [])
    assert [number for number in shore.rows("id") if number != 1] == [2, 70]
    assert shore.left_over() == set()


STEPS = ["table: committing", "table: merging", "table: merged", "table: committed", "table: clearing"]


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_at_a_step_leaves_one_that_merges_the_epoch_once(shore: Shore, step: str) -> None:
    shore.create(COLUMNS, "part")
    upserting(shore, "log").write(0, rows(row(1, 1), row(2, 1, "b")))
    given = rows(row(1, 2, "b", text="new"), row(2, 2, gone=True), row(3))
    with crash_at(step):
        upserting(shore, "log").write(1, given)
    upserting(shore, "log").write(1, given)
    assert [(each["id"], each["part"], each["text"]) for each in shore.rows()] == [(1, "b", "new"), (3, "a", "t3")]
    upserting(shore, "log").write(2, rows(row(9)))
    assert shore.left_over() == set()
    transactions = [version.transactions for version in shore.versions]
    assert len(transactions) == 4


def test_staged_files_that_vacuum_took_have_the_epoch_written_anew(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = upserting(shore)
    driver.write(0, rows(row(1)))

    def vacuum() -> None:
        shore.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    with pytest.raises(EpochAbandonedError, match="are missing"):
        driver.write(1, rows(row(2)), between=vacuum)
    driver.write(1, rows(row(2)))
    assert shore.rows("id") == [1, 2]


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


# --- refusals


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


@pytest.mark.parametrize(
    ("options", "given", "match"),
    [
        ({"key_columns": "no"}, {}, "he rows have no column 'no'"),
        ({"update_columns": "no"}, {}, "he rows have no column 'no'"),
        ({"delete_marker": "text", "order_column": "seq"}, {}, "'text' is no boolean column"),
        ({"key_columns": "x"}, {"x": pa.array([1.0])}, "olumn 'x' of type double cannot be in key_columns"),
        ({"key_columns": "s"}, {"s": pa.array([{"a": 1}])}, "cannot be in key_columns"),
        ({"order_column": "x"}, {"x": pa.array([1], pa.int32())}, "olumn 'x' of type double cannot be order_column"),
        ({}, {"unknown": pa.array([1])}, "nknown is not in the table"),
    ],
    ids=["key", "update_column", "marker", "double_key", "struct_key", "double_order", "unknown_column"],
)
def test_rows_whose_keys_cannot_be_compared_are_refused_before_the_first(
    shore: Shore, options: dict[str, Any], given: dict[str, Any], match: str
) -> None:
    shore.create(COLUMNS | {"x": "double", "s": {"type": "struct", "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {}}]}})  # fmt: skip
    some = rows(row(1))
    for name, values in given.items():
        some = some.append_column(name, values)
    with pytest.raises(ConfigurationError, match=match):
        upserting(shore, **options).write(0, some)
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


def test_an_epoch_beyond_the_limit_waits_until_it_is_raised(shore: Shore, caplog: pytest.LogCaptureFixture) -> None:
    shore.create(COLUMNS)
    many = rows(*(row(number, text="x" * 500) for number in range(3000)))
    with pytest.raises(ConfigurationError, match="raise max_merge_bytes"):
        upserting(shore, "log", max_merge_bytes="1 MiB").write(0, many)
    assert shore.rows() == []
    with caplog.at_level(logging.WARNING, "outfall.tables.merge"):
        upserting(shore, "log", max_merge_bytes="3 MiB").write(0, many)
    assert "more than half of max_merge_bytes (3 MiB)" in caplog.text
    assert len(shore.rows()) == 3000


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
    sink = DeltaSink(shore.path, **UPSERT)
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
