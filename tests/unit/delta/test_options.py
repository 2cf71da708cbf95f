"""What may be given to `DeltaSink`: where the table is, and options of the store that keep commits apart."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from outfall.delta import DeltaSink, sink_from_options
from outfall.errors import ConfigurationError

SECRET = "s3cr3t-0123456789"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/data/a b#ü/../t/", "/data/t"),
        ("file:///data/t", "/data/t"),
        ("s3a://lake/t/", "s3://lake/t"),
        ("gs://lake/t", "gs://lake/t"),
        ("abfss://lake@account.dfs.core.windows.net/t", "abfss://lake@account.dfs.core.windows.net/t"),
    ],
)
def test_a_place_has_one_name_however_it_is_spelt(path: str, target: str) -> None:
    sink = DeltaSink(path)
    assert sink.target() == target
    assert sink.kind() == "delta"
    assert sink.place().endswith(f"{target}/")


@pytest.mark.parametrize("path", ["relative/t", "hdfs:///t", "s3://key:secret@lake/t", "/data/100%", ""])
def test_a_place_that_will_not_do_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"path of .*: ") as refused:
        DeltaSink(path)
    assert "secret" not in str(refused.value)


def test_one_table_by_two_names_is_one_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table")
    assert DeltaSink(tmp_path / "link").place() == DeltaSink(tmp_path / "table").place()


@pytest.mark.parametrize(
    "options",
    [
        {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
        {"allow_unsafe_rename": "x", "aws_s3_allow_unsafe_rename": True},
        {"s3_locking_provider": "dynamodb"},
        {"AWS_S3_LOCKING_PROVIDER": "dynamodb"},
        {"conditional_put": "disabled"},
        {"aws_conditional_put": "dynamo:locks"},
    ],
    ids=str,
)
def test_what_lets_commits_overwrite_each_other_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="storage_options"):
        DeltaSink("s3://lake/t", storage_options=options)


def test_so_it_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigurationError, match="AWS_S3_ALLOW_UNSAFE_RENAME is set in the environment"):
        DeltaSink("s3://lake/t").load()


def test_harmless_values_are_taken() -> None:
    DeltaSink("s3://lake/t", storage_options={"AWS_S3_ALLOW_UNSAFE_RENAME": "false", "AWS_CONDITIONAL_PUT": "etag"})


def test_secrets_are_resolved_where_they_are_used_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    given = {"AWS_SECRET_ACCESS_KEY": "env:LAKE_SECRET", "AWS_ACCESS_KEY_ID": SECRET, "AWS_REGION": "x"}
    sink = DeltaSink("s3://lake/t", storage_options=given)
    place = sink.options.place
    assert place.options() == given | {"AWS_SECRET_ACCESS_KEY": SECRET}
    assert SECRET not in repr(sink) + repr(sink.options) + repr(place) + sink.place() + sink.target()
    assert place.summary(OSError(f"denied to {SECRET}\n   0: <unknown>")) == "OSError: denied to ***"
    assert b"LAKE_SECRET" in pickle.dumps(place)


def test_the_options_door_takes_the_same() -> None:
    sink = sink_from_options(
        {
            "path": "/data/t",
            "createtable": "if_missing",
            "partitionBy": "a, b",
            "storageOptions": '{"AWS_REGION": "x"}',
            "configuration": '{"delta.checkpointInterval": 5}',
        }
    )
    assert sink.options.partition_by == ("a", "b")
    assert sink.options.properties == {"delta.checkpointInterval": "5"}
    assert sink.options.place.options() == {"AWS_REGION": "x"}


@pytest.mark.parametrize(
    "options",
    [
        {"configuration": {"delta.checkpointInterval": "5"}},
        {"configuration": {"checkpointInterval": "5"}, "create_table": "if_missing"},
        # With these, deltalake creates no table, or one that it or the sink rejects.
        {"configuration": {"delta.enableDeletionVectors": "true"}, "create_table": "if_missing"},
        {"configuration": {"delta.checkpointPolicy": "v2"}, "create_table": "if_missing"},
        {"configuration": {"delta.minWriterVersion": "7"}, "create_table": "if_missing"},
        {"configuration": {"delta.feature.deletionVectors": "supported"}, "create_table": "if_missing"},
        {"configuration": {"delta.parquet.compression.codec": "zstd"}, "create_table": "if_missing"},
        {"storage_options": {"no name": "x"}},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^options? .*of DeltaSink: "):
        DeltaSink("/data/t", **options)


def test_an_upsert_cannot_create_a_table_that_it_could_not_merge_into() -> None:
    options: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id", "create_table": "if_missing"}
    with pytest.raises(ConfigurationError, match="a change data feed"):
        DeltaSink("/data/t", configuration={"delta.enableChangeDataFeed": "true"}, **options)


@pytest.mark.parametrize("make", [lambda given: DeltaSink(**given), sink_from_options], ids=["in Python", "by options"])
def test_the_writer_of_spark_is_refused_with_what_to_do(make: Callable[[dict[str, str]], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"option writer of DeltaSink: is an option of FileSink.*: omit it\.$"):
        make({"path": "/data/t", "writer": "spark"})


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (["t*", "eu/t*"], "names of different depths"),
        (["../t*"], r"the entry '\.\./t\*' of allowed_tables has the part '\.\.', which begins with '\.'"),
        (["_t*"], "begins with '_'"),
        (["/t*"], "has an empty part"),
        (["t%20*"], "contains '%'"),
    ],
)
def test_tables_that_could_be_elsewhere_or_within_others_are_refused(entries: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        DeltaSink("/data/lake", table_column="place", allowed_tables=entries)


def test_rows_name_only_tables_whose_names_are_paths_as_they_are() -> None:
    options = DeltaSink("s3://lake/tables", table_column="place", allowed_tables="*").options
    strange = [chr(code) for code in range(128) if not chr(code).isalnum() and chr(code) not in "_-=./"]
    within = [name for each in [*strange, "é", "\u2028"] for name in (f"t{each}1", f"t{each}", f"{each}t")]
    for name in ("..", ".", "", "a//b", "\n..", "t1.", "-t", "=t", *within):
        with pytest.raises(ValueError, match=r"contains|has the part|has an empty part|has a blank part"):
            options.parts_of(name)
    assert options.parts_of("eu/T_1-a.b=c") == ("eu", "T_1-a.b=c")


def make_log(directory: Path) -> None:
    (directory / "_delta_log").mkdir(parents=True)
    (directory / "_delta_log" / f"{0:020}.json").write_text("broken")


def test_a_table_within_another_one_is_refused(tmp_path: Path) -> None:
    make_log(tmp_path / "eu" / "west")
    sink = DeltaSink(tmp_path, table_column="place", allowed_tables="eu/*/t*")
    with pytest.raises(ConfigurationError, match=r"eu/west/t1 is within the table .*eu/west\."):
        sink.check_apart("eu/west/t1", set())
    sink.check_apart("eu/east/t1", seen := set[str]())
    assert seen == {"eu/", "eu/east/"}


def test_a_table_is_not_created_around_another_one(tmp_path: Path) -> None:
    make_log(tmp_path / "t1" / "x" / "y")
    sink = DeltaSink(tmp_path, table_column="place", allowed_tables="t*", create_table="if_missing")
    with pytest.raises(ConfigurationError, match="cannot become a table, because its directory has the table 'x/y'"):
        sink.of_table("t1").create(pa.schema({"id": pa.int64()}))
    (tmp_path / "t2" / "_delta_log").mkdir(parents=True)  # by a task that died
    sink.of_table("t2").create(pa.schema({"id": pa.int64()}))
    assert sink.of_table("t2").load() is not None


def test_a_table_that_was_created_and_changed_never_had_rows(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", create_table="if_missing", schema_evolution="add_columns")
    rows = pa.schema({"id": pa.int64()})
    sink.create(rows)
    table = sink.load()
    assert table is not None
    table.add_columns(rows.append(pa.field("more", pa.string())))
    table = sink.load()
    assert table is not None
    assert table.never_had_rows()
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}), mode="append", schema_mode="merge")
    DeltaTable(tmp_path / "t").delete()
    table = sink.load()
    assert table is not None
    assert (table.has_rows(), table.never_had_rows()) == (False, False)


def test_a_table_is_a_directory_below_the_given_one() -> None:
    many = DeltaSink("s3://lake/tables", table_column="place", allowed_tables="eu/t*")
    assert many.target() == "s3://lake/tables, the tables of column 'place'"
    assert many.of_table("eu/t1").target() == "s3://lake/tables/eu/t1"
    assert many.of_table("eu/t1").place().startswith(many.place())
