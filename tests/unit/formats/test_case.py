"""Names that differ only in case, which a reader of files does not distinguish."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.values import CASE_SENSITIVE

NESTED: list[tuple[Any, str]] = [
    (pa.struct({"a": pa.int64(), "A": pa.int64()}), r"'v\.a' and 'v\.A'"),
    (pa.list_(pa.struct({"a": pa.int64(), "A": pa.int64()})), "differ only in case"),
    (pa.map_(pa.string(), pa.struct({"a": pa.int64(), "A": pa.int64()})), "differ only in case"),
]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("partition_by", [None, "C"])
def test_columns_that_differ_only_in_case_are_refused(format: Any, partition_by: str | None) -> None:
    """Spark's reader returns one of them, if it is a partition, and otherwise fails."""
    options: dict[str, Any] = {"partition_by": partition_by} if partition_by else {}
    sink = FileSink("/out", format=format, **options)
    schema = pa.schema({"c": pa.string(), "id": pa.int64(), "C": pa.string()})
    with pytest.raises(ConfigurationError, match="'c' and 'C' differ only in case"):
        sink.check_schema(schema)
    sink.check_schema(schema.with_metadata({CASE_SENSITIVE: b"true"}))
    sink.check_schema(pa.schema({"c": pa.string(), "id": pa.int64(), "d": pa.string()}))


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize(("kind", "text"), NESTED)
def test_fields_that_differ_only_in_case_are_refused(format: Any, kind: Any, text: str) -> None:
    schema = pa.schema({"a": pa.int64(), "v": kind})
    with pytest.raises(ConfigurationError, match=text):
        FileSink("/out", format=format).check_schema(schema)
    FileSink("/out", format=format).check_schema(schema.with_metadata({CASE_SENSITIVE: b"true"}))
