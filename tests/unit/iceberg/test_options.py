"""The options of the Iceberg sink: partitioning in Spark's words, properties, secrets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError
from outfall.iceberg import IcebergSink, sink_from_options
from outfall.iceberg.options import PartitionTerm

TERMS = [
    ("carrier", [("identity", "carrier", "")]),
    (" days(ts) , bucket( 16 , id ),carrier",
     [("day", "ts", "_day"), ("bucket[16]", "id", "_bucket"), ("identity", "carrier", "")]),
    ("YEARS(a),month(b),date(c),date_hour(d)",
     [("year", "a", "_year"), ("month", "b", "_month"), ("day", "c", "_day"), ("hour", "d", "_hour")]),
    ("truncate(4, name)", [("truncate[4]", "name", "_trunc")]),
    ("truncate(name, 4)", [("truncate[4]", "name", "_trunc")]),
    ("identity(a.b), `odd, (name)`, days(`ti``ck`)",
     [("identity", "a.b", ""), ("identity", "odd, (name)", ""), ("day", "ti`ck", "_day")]),
    ("", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TERMS)
def test_partitions_are_named_in_sparks_words(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert list(IcebergSink("db.t", partition_by=text).options.terms) == [PartitionTerm(*each) for each in expected]
    assert list(sink_from_options({"table": "db.t", "partitionBy": text}).options.terms) == [
        PartitionTerm(*each) for each in expected
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bucket(id)", r"'bucket\(id\)': write bucket\(16, column\), with a number above 0"),
        ("bucket(0, id)", "with a number above 0"),
        ("truncate(name)", r"write truncate\(16, column\)"),
        ("days()", "'' is not a column name"),
        ("days(a, b)", r"days\(…\) takes one column"),
        ("weeks(ts)", r"weeks\(…\) does not exist; there are years\(…\), months"),
        ("a,,b", "'' is not a column name"),
        ("days(ts", r"'days\(ts' is not a column name; write names with other characters in backquotes"),
    ],
)
def test_what_is_wrong_with_a_partition_is_said(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"partition_by of .*: .*{why}"):
        IcebergSink("db.t", partition_by=text)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table": "flights"}, "table of .*: must include the namespace"),
        ({"table": "db."}, "table of .*: must include the namespace"),
        ({"branch": "b", "create_table": "if_missing"}, "a new table has no snapshot to branch from"),
        ({"snapshot_properties": {"added-records": "1"}}, "added-records is filled in by the commit"),
        ({"snapshot_properties": {"outfall.step.x": "1", "operation": "1"}}, "are filled in by the commit"),
        ({"max_snapshot_age": 0}, "max_snapshot_age of .*: must be longer than 0"),
        ({"catalog_options": ["s3cret"]}, "catalog_options of .*: must be a mapping of names"),
        ({"catlog": "x"}, "did you mean catalog"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        IcebergSink(**({"table": "db.t"} | options))
    assert "s3cret" not in str(caught.value)


def test_no_secret_is_shown_or_travels_in_the_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIAL", "s3cret-1")
    (tmp_path / "key").write_text("s3cret-2\n")
    given = {
        "type": "sql", "uri": "postgresql+psycopg2://me:s3cret-3@db:5432/lake?sslpassword=s3cret-4", "warehouse": "file:///wh",
        "credential": "env:CREDENTIAL", "s3.secret-access-key": f"file:{tmp_path}/key", "token": "s3cret-5",
    }  # fmt: skip
    sink = sink_from_options({"table": "db.t", "catalogOptions": json.dumps(given)})
    shown = [repr(sink), repr(sink.options), str(sink.options), sink.target(), sink.place(), repr(vars(sink.catalogue))]
    assert "s3cret" not in "".join(shown)
    assert sink.place() == "postgresql+psycopg2://***@db:5432/lake / db.t main"
    travelling = pickle.dumps(sink)
    assert b"s3cret-1" not in travelling
    assert b"s3cret-2" not in travelling
    catalogue = pickle.loads(travelling).catalogue
    reached = {"s3.secret-access-key": "s3cret-2", "warehouse": "file:///wh", "auth.manager": object(), "more": "x"}
    assert {name: str(value) for name, value in catalogue.for_tasks(reached).items()} == {
        "s3.secret-access-key": "**********", "warehouse": "file:///wh", "more": "x",
    }  # fmt: skip
    error = catalogue.explain(RuntimeError("s3cret-1 s3cret-2 me:s3cret-3@db s3cret-5"), "it failed")
    assert "s3cret" not in str(error)
    assert error.__cause__ is None


def test_places_tell_tables_and_branches_apart_and_names_are_stable() -> None:
    lake = {"uri": "sqlite:////data/c.db"}
    one, other = IcebergSink("db.t", catalog_options=lake), IcebergSink("db.t", catalog_options=lake, branch="b")
    assert (one.target(), other.target()) == ("sqlite:////data/c.db db.t", "sqlite:////data/c.db db.t, branch b")
    assert one.place() != other.place()
    named = IcebergSink("db.t", catalog="lake", catalog_options=lake)
    assert named.place() == one.place()
    assert named.target() == "lake db.t"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table": "db.t"}, "set either table or table_column"),
        ({"allowed_tables": "t*"}, "the entry 't\\*' of allowed_tables must include the namespace"),
        ({"allowed_tables": "db.t/*"}, "the entry 'db.t/\\*' of allowed_tables contains '/'"),
        ({"allowed_tables": "db.t?*"}, r"the entry 'db.t\?\*' of allowed_tables contains '\?'"),
        ({"allowed_tables": "db.t#*"}, "contains '#'"),
        ({"allowed_tables": "db.t *"}, "contains ' '"),
        ({"write_mode": "upsert", "key_columns": "place"}, "table_column is not stored"),
    ],
)
def test_options_of_many_tables_that_do_not_fit_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        IcebergSink(**({"table_column": "place", "allowed_tables": "db.t*"} | options))
    with pytest.raises(ConfigurationError, match="set either table or table_column"):
        IcebergSink()


def test_many_tables_are_at_the_place_of_each_of_them() -> None:
    catalog = {"type": "sql", "uri": "sqlite:////lake.db"}
    many = IcebergSink(table_column="place", allowed_tables="db.t*", catalog_options=catalog)
    assert many.target() == "sqlite:////lake.db the tables of column 'place'"
    one = many.of_table("db.t1")
    assert (one.target(), one.options.table_column) == (IcebergSink("db.t1", catalog_options=catalog).target(), None)
    assert one.place().startswith(many.place())
    assert many.place().endswith("/")


def test_tasks_have_the_drivers_configuration_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "https://catalog")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", "s3cret")
    sink = IcebergSink(
        table_column="place", allowed_tables="db.t*", catalog="lake", catalog_options={"token": "env:TOKEN"}
    )
    sent = pickle.dumps(sink.for_tasks())
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__URI")
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__TOKEN")
    monkeypatch.setenv("TOKEN", "s3cret-2")
    assert b"s3cret" not in sent  # a reference goes before, and stays one
    assert pickle.loads(sent).catalogue._resolved() == {"uri": "https://catalog", "token": "s3cret-2"}
