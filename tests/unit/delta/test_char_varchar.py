"""CHAR and VARCHAR columns of tables that Spark made: the same values are refused that Spark refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.delta import DeltaSink
from outfall.errors import ConfigurationError, ValueRefusedError
from tests.unit.support.delta_reader import write_table

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"


def write(path: Path, values: pa.Array, declared: str, *partitioned_by: str) -> None:
    write_table(path, {"id": "long", "v": "string"}, partitioned_by, metadata={"v": {DECLARED: declared}})
    table = DeltaSink(path).load()
    assert table is not None
    rows = pa.RecordBatch.from_arrays([pa.array(range(len(values))), values], ["id", "v"])
    table.files.partition(rows.cast(table.files.file_schema(rows.schema)))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("partitioned_by", [(), ("v",)], ids=["plain", "partition"])
@pytest.mark.parametrize(
    ("declared", "values", "refused"),
    [
        ("varchar(3)", ["abc", "a", None, "\U0001f600" * 3, "äöü"], None),
        ("varchar(3)", ["abc", None, "abcd"], r"column 'v' has a value of more than 3 characters.*in row 2"),
        ("VARCHAR(3)", ["ab  "], "the length of the table's VARCHAR"),
        ("char(4)", ["abcd", "ab  ", None, "\U0001f600" * 4], None),
        ("char(4)", ["abcd", "ab"], r"does not have 4 characters, as the table's CHAR\(4\), in row 1"),
        ("char(4)", ["abcde"], "does not have 4 characters"),
    ],
)
def test_lengths_are_those_that_spark_allows(
    tmp_path: Path, declared: str, values: list[Any], refused: str | None, partitioned_by: tuple[str, ...], kind: Any
) -> None:
    if refused is None:
        write(tmp_path, pa.array(values, kind), declared, *partitioned_by)
        return
    with pytest.raises(ValueRefusedError, match=refused) as caught:
        write(tmp_path, pa.array(values, kind), declared, *partitioned_by)
    assert "abcd" not in str(caught.value)


def test_the_advice_for_a_char_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueRefusedError, match=r"rpad\(v, 4, ' '\)"):
        write(tmp_path / "a", pa.array(["ab"]), "char(4)")
    write(tmp_path / "b", pa.array(["ab".ljust(4, " ")]), "char(4)")


def test_a_length_inside_a_column_is_refused_before_the_first_row(tmp_path: Path) -> None:
    nested = {"n": {"type": "array", "elementType": "string", "containsNull": True}}
    write_table(tmp_path, nested, metadata={"n": {DECLARED: "array<varchar(3)>"}})
    with pytest.raises(ConfigurationError, match=r"column 'n' of .* has a CHAR or VARCHAR inside"):
        DeltaSink(tmp_path).load()
