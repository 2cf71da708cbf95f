"""Text: one line per row, never two."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema, encoder, suffix


def encode(values: pa.Array) -> bytes:
    batch = pa.record_batch({"line": values})
    return bytes(encoder(FormatOptions(format="text"), batch.schema).encode(batch))


@settings(deadline=None)
@given(
    st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"))),
    st.integers(0, 3),
)
def test_every_line_is_its_value_and_null_is_empty(values: list[str | None], skipped: int) -> None:
    for kind in (pa.string(), pa.large_string()):
        expected = "".join(f"{value or ''}\n" for value in values[skipped:])
        assert encode(pa.array(values, kind).slice(skipped)).decode() == expected


@pytest.mark.parametrize(("character", "name"), [("\n", "newline"), ("\r", "carriage return")])
def test_a_line_break_is_refused_by_row(character: str, name: str) -> None:
    values = pa.array(["a\nb", "fine", None, f"a{character}b", "fine"])
    with pytest.raises(ValueRefusedError, match=rf"'line' contains a {name}, in row 2 of the batch") as caught:
        encode(values.slice(1))
    assert "jsonl" in str(caught.value)


def test_a_line_break_outside_the_slice_is_none_of_its_rows() -> None:
    assert encode(pa.array(["a\nb", "fine", "c\r"]).slice(1, 1)) == b"fine\n"


def test_nul_stays_as_readers_do_not_mind_it() -> None:
    assert encode(pa.array(["a\0b"])) == b"a\0b\n"


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("a", pa.int64())]),
        pa.schema([("a", pa.binary())]),
        pa.schema([("a", pa.string()), ("b", pa.string())]),
    ],
)
def test_anything_but_one_string_column_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(ConfigurationError, match="exactly one string column"):
        check_schema(FormatOptions(format="text"), schema)


def test_the_suffix() -> None:
    assert suffix(FormatOptions(format="text")) == ".txt"
