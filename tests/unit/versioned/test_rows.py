"""Ranks of rows: they compare as the values of the ordering column do, and depend on nothing else than the row."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.redis import RedisSink
from outfall.tables.key_options import refuse_null_keys
from outfall.versioned.rows import KeyedRow, changes_of, check_columns, ranks, refuse_null_sequences

SORTED: dict[str, list[Any]] = {
    "int64": [None, -(2**63), -1, 0, 1, 2**63 - 1],
    "uint64": [None, 0, 2**64 - 1],
    "string": [None, "", "a", "a\x00", "a\x00b", "aa", "b", "ä", "𝄞"],
    "date": [None, datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)],
    "timestamp": [None, *(datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1, 1969, 9999))],
    "decimal": [None, *(decimal.Decimal(text) for text in ("-" + "9" * 38, "-1", "0", "1", "9" * 37 + "8", "9" * 38))],
}


@pytest.mark.parametrize("kind", SORTED)
def test_ranks_compare_as_the_values_do(kind: str) -> None:
    types = {"int64": pa.int64(), "uint64": pa.uint64(), "decimal": pa.decimal128(38, 0)}
    values = pa.array(SORTED[kind], types.get(kind))
    found = ranks(pa.record_batch({"n": values}), "n").to_pylist()
    assert found == sorted(found)
    assert len(set(found)) == len(found)


@given(some.lists(some.text(alphabet="\x00\x01aä", max_size=4), min_size=2, max_size=8))
def test_ranks_of_strings_compare_as_utf_8(values: list[str]) -> None:
    # The hash of the row must not decide between different values.
    found = ranks(pa.record_batch({"n": values, "more": list(range(len(values)))}), "n").to_pylist()
    order = sorted(range(len(values)), key=lambda at: found[at])
    assert [values[at].encode() for at in order] == sorted(value.encode() for value in values)


def test_a_rank_depends_on_the_row_alone() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "text": ["a", None, "c"]})
    assert ranks(batch, None)[2:] == ranks(batch.slice(2), None)
    assert len(set(ranks(batch, None).to_pylist())) == 3


def test_a_rank_of_integers_has_the_form_of_larger_numbers() -> None:
    # Ranks are stored: a release does not change their form.
    for value, text in [(1, "0180" + "0" * 31 + "1"), (-1, "017f" + "f" * 32)]:
        for kind in (pa.int8(), pa.int64(), pa.decimal128(38, 0)):
            assert ranks(pa.record_batch({"n": pa.array([value]).cast(kind)}), "n")[0].as_py()[:36] == text


def test_null_keys_are_refused_and_null_markers_are_no_deletes() -> None:
    batch = pa.record_batch({"id": [1, None], "gone": [None, True]})
    changes = changes_of(batch, ["id"], "gone", None, ranked=False)
    assert changes.rows.schema.names == ["id"]
    assert changes.deleted is not None
    assert changes.deleted.to_pylist() == [False, True]
    assert changes.chosen(pa.scalar("d"), pa.scalar("u")).to_pylist() == ["u", "d"]
    with pytest.raises(ValueRefusedError, match="'id' is NULL"):
        refuse_null_keys(batch, ["id"])
    refuse_null_keys(batch.slice(0, 1), ["id"])  # NULL elsewhere is no key


def test_a_delete_has_values_in_its_key_only() -> None:
    batch = pa.record_batch({"id": [1, 2], "n": [3, 4], "text": ["", "a"], "gone": [True, False]})
    changes = changes_of(batch, ["id"], "gone", "n", ranked=True)
    assert changes.rows.to_pylist() == [{"id": 1, "n": None, "text": None}, {"id": 2, "n": 4, "text": "a"}]


@pytest.mark.parametrize(
    ("keys", "order", "marker", "said"),
    [
        (["no"], None, None, "the key requires the column 'no'"),
        (["id"], "no", None, "order_column requires the column 'no'"),
        (["id"], "part", None, "cannot be order_column"),
        (["part"], None, None, "cannot be in key_columns"),
        (["id"], None, "id", "delete_marker is the column 'id'"),
    ],
)
def test_columns_that_cannot_serve(keys: list[str], order: str | None, marker: str | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_columns(pa.schema([("id", pa.int64()), ("part", pa.float64())]), keys, order, marker)


def test_a_sequence_that_cannot_serve_is_named_by_its_option() -> None:
    schema = pa.schema([("id", pa.int64()), ("part", pa.float64())])
    with pytest.raises(ConfigurationError, match="cannot be sequence_column"):
        check_columns(schema, ["id"], "part", None, "sequence_column")
    with pytest.raises(ValueRefusedError, match=r"the sequence, in column 'n', is NULL.*coalesce\(n, 0\)"):
        refuse_null_sequences(pa.record_batch({"n": [1, None]}), "n")
    with pytest.raises(ConfigurationError, match="which is in the key"):
        RedisSink("redis://redis", "r:{id}", sequence_column="id").check_schema(schema)


def test_a_sequence_has_no_fraction_since_its_scale_may_change_with_the_run() -> None:
    def check(kind: pa.DataType) -> None:
        schema = pa.schema([("id", pa.int64()), ("seq", kind)])
        RedisSink("redis://redis", "r:{id}", sequence_column="seq").check_schema(schema)

    with pytest.raises(ConfigurationError, match=r"CAST\(seq \* 100 AS DECIMAL\(38, 0\)\)"):
        check(pa.decimal128(20, 2))
    for kind in (pa.decimal128(38, 0), pa.int32(), pa.string(), pa.timestamp("us", "UTC")):
        check(kind)
    RedisSink("redis://redis", "r:{id}", order_column="n").check_schema(
        pa.schema([("id", pa.int64()), ("n", pa.decimal128(20, 2))])
    )


def test_a_row_is_shown_whole_and_alone() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "text": ["a", None, "c"]})
    rows = [KeyedRow(key=None, write=None, size=0, rank="", batch=batch, row=row) for row in range(3)]
    assert [json.loads(row.text()) for row in rows] == batch.to_pylist()
