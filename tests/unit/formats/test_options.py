"""The options of formats: what is refused where a sink is constructed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError
from outfall.file import FileSink, sink_from_options
from outfall.formats import FormatArguments, FormatOptions
from outfall.options import make_options


def test_keyword_arguments_and_options_have_the_same_names() -> None:
    assert list(FormatArguments.__annotations__) == list(FormatOptions.model_fields)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sep": ";"}, "sep is an option of csv, but the format is jsonl"),
        ({"format": "parquet", "header": True}, "header is an option of csv"),
        ({"format": "text", "date_format": "yyyy"}, "date_format is an option of csv and jsonl"),
        ({"format": "csv", "ignore_null_fields": False}, "ignore_null_fields is an option of jsonl"),
        ({"compression": "snappy"}, "snappy is for parquet"),
        ({"compression": "lz4"}, "compression of .*: "),
        ({"format": "xml"}, "format of .*: .*'csv', 'jsonl'"),
        ({"format": "csv", "sep": "||"}, "sep of .*: must be one character"),
        ({"format": "csv", "quote": ""}, "quote of .*: must be one character"),
        ({"format": "csv", "escape": "\n"}, "escape of .*: must be one character"),
        ({"format": "csv", "sep": '"'}, "sep must differ"),
        ({"format": "csv", "sep": "\\"}, "sep must differ"),
        ({"format": "csv", "null_value": "a,b"}, "null_value must not contain"),
        ({"format": "csv", "empty_value": "\n"}, "empty_value must not contain"),
        ({"date_format": "yyyy-MM-dd HH"}, "'HH' is not supported"),
        ({"timestamp_format": "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"}, r"\[ is not supported outside quotes"),
        ({"timestamp_format": "EEE, dd MMM"}, "'EEE' is not supported"),
        ({"timestamp_ntz_format": "HH:mm:ssXXX"}, "'XXX' is not supported"),
        ({"timestamp_format": "HH'h"}, "' is not supported outside quotes"),
        ({"timestamp_format": "HH'\"'"}, "must not contain quotes"),
        ({"date_format": ""}, "contains no part"),
        ({"date_format": "'day'"}, "contains no part"),
        ({"format": "csv", "null_value": "-", "empty_value": "-"}, "null_value and empty_value must differ"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make_options(FormatOptions, options)
    with pytest.raises(ConfigurationError, match=named):
        FileSink("/x", **options)


def test_an_option_at_its_default_is_fine_with_every_format() -> None:
    assert make_options(FormatOptions, {"format": "jsonl", "sep": ",", "header": False}).format == "jsonl"


def test_options_are_known_by_sparks_names() -> None:
    given = {
        "path": "/x",
        "format": "csv",
        "nullValue": "-",
        "quoteAll": "true",
        "timestampNTZFormat": "yyyy",
        "sep": "\\t",
    }
    made = sink_from_options(given).options
    assert (made.null_value, made.quote_all, made.timestamp_ntz_format, made.sep) == ("-", True, "yyyy", "\t")


def test_parquet_does_not_grow(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a parquet file ends with a footer"):
        FileSink(tmp_path, format="parquet", parts=2)
