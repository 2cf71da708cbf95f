"""Values that a column cannot hold are refused, by column and row, before they are sent."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.formats.strings import RefusedRowError
from outfall.postgres.copy.values import ValueContext, fitted
from tests.unit.support.postgres_columns import kind

INVALID = pa.array([b"ok", b"\xff"]).view(pa.string())
DAYS = pa.array([0, 2_145_042_906], pa.int32()).cast(pa.date32())
JULIAN = pa.array([0, -2_440_589], pa.int32()).cast(pa.date32())
INSTANTS = pa.array([0, -2_440_588 * 86_400_000_000 - 1], pa.int64()).cast(pa.timestamp("us", "UTC"))

# As the server's catalog has them for interval day, interval day to hour, interval second(2).
INTERVAL_DAY, INTERVAL_HOUR = f"interval({1 << 3 << 16 | 0xFFFF})", f"interval({(1 << 3 | 1 << 10) << 16 | 0xFFFF})"
INTERVAL_SECOND_2 = f"interval({1 << 12 << 16 | 2})"

REFUSED: list[tuple[Any, str, str]] = [
    (pa.array([1, 2**15]), "int2", "range of int16"),
    (pa.array([1, -(2**31) - 1]), "int4", "range of int32"),
    (pa.array([Decimal(1), Decimal(2**63)]), "int8", "range of int64"),
    (pa.array([Decimal("1.0"), Decimal("1.5")]), "int4", "number that is not whole"),
    (pa.array([9999, 10_000]), "numeric(6,2)", r"fit numeric\(6,2\)"),
    (pa.array([Decimal("1.10"), Decimal("1.11")]), "numeric(6,1)", r"fit numeric\(6,1\)"),
    (pa.array([1, -1000], pa.int16()), "numeric(3,0)", r"fit numeric\(3,0\)"),
    (pa.array(["", "a\0b"]), "text", "NUL"),
    (INVALID, "text", "not UTF-8"),
    (INVALID, "inet", "not UTF-8"),
    (pa.array(["🚚🚚🚚", "abcd"]), "varchar(3)", "more than 3 characters"),
    (pa.array(["abc", "abc "]), "varchar(3)", "more than 3 characters"),
    (pa.array(["abc  ", "abcd"]), "bpchar(3)", "more than 3 characters"),
    (pa.array(["ü" * 31, "ü" * 32]), "name", "more than 63 bytes"),
    (pa.array(["a0eebc999c0b4ef8bb6d6bb9bd380a11", "a0eebc999c0b4ef8bb6d6bb9bd380a1"]), "uuid", "not a UUID"),
    (pa.array(["\\\\u0000", "\\\\\\u0000"]), "jsonb", "NUL"),
    (pa.array([{"a": "\\u0000"}, {"a": "\0"}]), "jsonb", "NUL"),
    (pa.StructArray.from_arrays([INVALID], ["x"]), "jsonb", "not UTF-8"),
    (pa.ListArray.from_arrays([0, 1, 2], INVALID), "json", "not UTF-8"),
    (pa.MapArray.from_arrays([0, 1, 2], INVALID, pa.array([1, 2])), "jsonb", "not UTF-8"),
    (pa.ListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([INVALID], ["x"])), "jsonb[]", "not UTF-8"),
    (pa.StructArray.from_arrays([DAYS], ["x"]), "jsonb", "outside the years 1 to 9999"),
    (pa.array([["a", "b"], ["c", "\0"]]), "text[]", "NUL"),
    (pa.array([[1, None], [None, 2**15]]), "int2[]", "range of int16"),
    (DAYS, "date", "a date outside"),
    (JULIAN, "date", "a date outside"),
    (INSTANTS, "timestamptz", "a timestamp outside"),
    (pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("s")), "timestamp", "range of timestamp"),
    *[
        (pa.array(given), type, "cannot hold unchanged")
        for type, given in {
            "numeric(6,2)": [1.25, 1.255],
            "numeric(20,0)": [1e19, 0.5],
            "numeric(4,2)": ["1.2300", "12.3e-2"],
            "numeric(6,1)": ["1.50", "1.55"],
            "numeric(6,-2)": ["1200", "1250"],
            "numeric(5,2)[]": [[1.25], [1.255]],
            "char": ["a", "ab"],
            "date": ["2024-01-31 00:00:00", "2024-01-31 00:00:01"],
            "time": ["12:34:56.789012", "2024-01-31 12:34:56"],
            "time(0)": ["12:34:56.000", "12:34:56.5"],
            "timestamp": ["2024-01-31T12:34:56", "2024-01-31 12:34:56+02"],
            "timestamp(3)": ["2024-01-31 12:34:56.7890", "2024-01-31 12:34:56.7895"],
            "timestamptz": ["2024-01-31 12:34:56.789012 Europe/Berlin", "2024-01-31 12:34:56.7890125+02"],
            "interval": ["1.5 days 00:00:01.123456", "1.1234567 seconds"],
        }.items()
    ],
    (pa.array([1.5, 1.55], pa.float32()), "numeric(6,1)", "cannot hold unchanged"),
    *[
        (pa.array([0, -1], pa.int64()).cast(kind), type, "cannot hold unchanged")
        for kind, type in (
            (pa.timestamp("us"), "timestamp(5)"),
            (pa.timestamp("us", "UTC"), "timestamptz(0)"),
            (pa.duration("us"), INTERVAL_DAY),
        )
    ],
    (pa.array([0, 400_000], pa.int64()).cast(pa.time64("us")), "time(0)", "cannot hold unchanged"),
    (pa.array([3_600_000_000, 60_000_000]).cast(pa.duration("us")), INTERVAL_HOUR, "cannot hold unchanged"),
    (pa.array([1_500_000, 1_234_567]).cast(pa.duration("us")), INTERVAL_SECOND_2, "cannot hold unchanged"),
]


@pytest.mark.parametrize(("array", "type", "text"), REFUSED, ids=[f"{i} {r[1]}" for i, r in enumerate(REFUSED)])
def test_the_first_bad_value_is_named(array: pa.Array, type: str, text: str) -> None:
    assert len(fitted(array.slice(0, 1), kind(type), ValueContext("c"))) == 1
    good_and_bad = pa.concat_arrays([array.slice(0, 1)] * 3 + [pa.nulls(1, array.type), array, array])
    named = rf"column 'c(\.element)?' contains .*{text}.*, in row 4 of the batch"
    with pytest.raises(RefusedRowError, match=named) as refused:
        fitted(good_and_bad.slice(1), kind(type), ValueContext("c"))
    assert refused.value.row == 4


def test_elements_of_null_lists_count_for_nothing() -> None:
    hidden = pa.ListArray.from_arrays([0, 1, 2, 3], pa.array([1, 2**40, 3]), mask=pa.array([False, True, False]))
    found = fitted(hidden, kind("int4[]"), ValueContext("c"))
    assert found.to_pylist() == [[1], None, [3]]
    assert len(found.values) == 2


def test_the_type_depends_on_the_types_alone() -> None:
    for array, type, _ in REFUSED:
        good = array.slice(0, 1)
        assert (
            fitted(good, kind(type), ValueContext("c")).type
            == fitted(good.slice(1), kind(type), ValueContext("c")).type
        )
