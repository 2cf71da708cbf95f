"""Which column a name means, and how the columns get their names back."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from outfall.errors import ConfigurationError
from outfall.spark.columns import RowColumns, named
from outfall.values import to_values

NAMES = ["id", "a.b", "a", "ID", "x`y", "twice", "twice"]


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        ("id", ("c0",), "id"),
        ("`id`", ("c0",), "id"),
        ("ID", ("c3",), "ID"),
        ("a.b", ("c1",), "a.b"),
        ("`a.b`", ("c1",), "a.b"),
        ("a.c", ("c2", "c"), "a.c"),
        ("a.`c.d`.e", ("c2", "c.d", "e"), "a.c.d.e"),
        ("`x``y`", ("c4",), "x`y"),
        ("x`y", ("c4",), "x`y"),
    ],
)
def test_a_column_is_found_literally_or_as_spark_reads_a_name(text: str, path: tuple[str, ...], name: str) -> None:
    found = RowColumns(NAMES).find("key", text)
    assert (found.path, found.name) == (path, name)


def test_the_expression_in_sql_quotes_each_name() -> None:
    assert RowColumns(NAMES).find("key", "a.`c.``d`").sql() == "coalesce(`c2`).`c.``d`"
    assert RowColumns(NAMES).find("key", "x`y").sql() == "`c4`"


@pytest.mark.parametrize(
    ("names", "kept"), [(["id", "a_1"], True), (["id", "ID"], False), (["id", "a.b"], False), (["id", "__x"], False)]
)
def test_clear_names_are_kept_because_a_projection_takes_time(names: list[str], kept: bool) -> None:
    assert RowColumns(names).find("key", "id").path == ("id" if kept else "c0",)


@pytest.mark.parametrize("text", ["nope", "nope.id", "", ".", "id.", "`id", "`id`x", "Id"])
def test_a_name_that_means_no_column_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"key requires the column .*, and the rows have id, a\.b"):
        RowColumns(NAMES).find("key", text)


def test_a_name_of_two_columns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 columns have the name 'twice'"):
        RowColumns(NAMES).find("key", "twice")
    with pytest.raises(ConfigurationError, match="2 columns have the name 'twice'"):
        RowColumns(NAMES).check_unique()
    RowColumns(["a", "A"]).check_unique()


def test_columns_get_their_names_back_and_keep_their_types() -> None:
    schema = pa.schema([pa.field("c0", pa.int32(), nullable=False), ("c1", pa.string()), ("part", pa.int32())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int32()), pa.array(["x"]), pa.array([0], pa.int32())], schema=schema
    )
    given = named(batch, ["a.b", "A"])
    assert given.schema == pa.schema(
        [pa.field("a.b", pa.int32(), nullable=False), ("A", pa.string()), ("part", pa.int32())]
    )
    assert given.to_pylist() == [{"a.b": 1, "A": "x", "part": 0}]
    assert named(batch, []) is batch


def test_a_dict_of_two_columns_of_one_name_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ConfigurationError, match="two columns have the name 'a'"):
        to_values(batch, None)
