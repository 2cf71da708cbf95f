"""Values of every type that a bound, or a reader that trusts it, may get wrong, and filters on them.

A case is a column. Its chunks become row groups of one file, and files of their own, so that bounds decide what a
filter reads. Columns with fewer chunks than others are NULL in the last ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count, pairwise
from math import inf, nan
from typing import Any

import pyarrow as pa

ROWS = 3
"""Rows of a chunk. The last value of a shorter one is repeated."""

FILES, ICEBERG, DELTA = "files", "iceberg", "delta"
COMPARISONS = (">", "=", "<=", "!=", "<", ">=")

_LAST = "\U0010ffff"
_BEFORE_SURROGATES = "\ud7ff"
_TRUCK = "\U0001f69a"


@dataclass(frozen=True)
class Case:
    """One column."""

    name: str
    kind: pa.DataType
    chunks: Sequence[Sequence[Any]]
    sinks: frozenset[str] = frozenset({FILES, ICEBERG, DELTA})

    def column(self, chunk: int) -> pa.Array:
        """Return the values of a chunk."""
        values = list(self.chunks[chunk]) if chunk < len(self.chunks) else [None]
        return pa.array(values + values[-1:] * (ROWS - len(values)), self.kind)

    def leaves(self) -> Iterator[tuple[tuple[str, ...], pa.DataType, list[Any]]]:
        """Yield the columns that readers can filter by: their path, type and values."""
        values = [value for chunk in self.chunks for value in chunk]
        yield from _leaves((self.name,), self.kind, values)


def _leaves(path: tuple[str, ...], kind: pa.DataType, values: list[Any]) -> Iterator[Any]:
    if pa.types.is_struct(kind):
        yield path, kind, []
        for each in kind:
            yield from _leaves((*path, each.name), each.type, [value and value[each.name] for value in values])
    else:
        # NaN is one value for all readers, whatever its bits are.
        once = {repr(value): value for value in values if value is not None and not pa.types.is_nested(kind)}
        yield path, kind, list(once.values())


@dataclass(frozen=True)
class Filter:
    """A condition on one column."""

    path: tuple[str, ...]
    kind: pa.DataType
    operator: str
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.operator} {', '.join(map(repr, self.values))}"


def filters(sink: str, *, every: bool) -> list[Filter]:
    """Return filters on all columns of a sink: every value with every operator, or each of them with some."""
    found, turn = [], count()
    for path, kind, values in (leaf for case in CASES if sink in case.sinks for leaf in case.leaves()):
        found += [Filter(path, kind, "is null"), Filter(path, kind, "is not null")]
        if pa.types.is_floating(kind):
            found.append(Filter(path, kind, "is nan"))
        for value, number in zip(values, turn, strict=False):
            some = COMPARISONS if every else (COMPARISONS[number % len(COMPARISONS)],)
            found += [Filter(path, kind, operator, (value,)) for operator in some]
        pairs = list(pairwise(values))
        found += [Filter(path, kind, "in", pair) for pair in (pairs if every else pairs[:1])]
    return found


def _double(bits: int) -> float:
    return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def _numbers(least: int, most: int) -> list[list[int]]:
    return [[least], [least + 1, most // 2 - 1], [most // 2], [most // 2 + 1, most - 1], [most]]


def _decimals(digits: int, scale: int) -> list[list[Decimal]]:
    most = 10**digits - 1
    chunks = [[-most], [1 - most], [-1, 0], [1], [most - 1], [most]]
    return [[Decimal(f"{number}e-{scale}") for number in chunk] for chunk in chunks]


def _floats(_: list[float | None], tiny: float, huge: float) -> list[list[float | None]]:
    return [
        [1.0, 1.5], [2.0, 7.0], [None, 9.0], [-inf, -1.0], [3.0, inf], [inf, -inf], [inf], [-0.0], [0.0],
        [tiny, 2 * tiny], [-tiny], [huge, 0.125], [-huge],
    ]  # fmt: skip


def _with_nan(nans: list[float | None], tiny: float, huge: float) -> list[list[float | None]]:
    return [
        [1.0, 1.5], nans[:3], [2.0, nans[3]], [7.0], [None, nans[0]], [None, 9.0], [nans[1], inf], [-inf, nans[2]],
        [nans[2], -0.0], [0.0], [tiny, nans[3]], [-huge], [huge],
    ]  # fmt: skip


_DOUBLES: list[float | None] = [
    nan,
    *map(_double, (0xFFF8_0000_0000_0000, 0x7FF0_0000_0000_0001, 0xFFFF_FFFF_FFFF_FFFF)),
]
_FLOATS: list[float | None] = [nan, *map(_float, (0xFFC0_0000, 0x7FC0_0001, 0xFFFF_FFFF))]
_DIGITS = [
    "-1234567890123456789.012345678", "-1234567890123456.700000001", "-0.000000001", "0.000012345", "0.123456789",
    "99999999999999.999999999", "123456789012345.999999999", "123456789012346.000000001",
    "98765432109876543210987654321.987654321",
]  # fmt: skip
_DAYS = ["0001-01-01", "1000-12-31", "1582-10-04", "1582-10-15", "1969-12-31", "1970-01-01", "9999-12-31"]
_MOMENTS = [
    ["0001-01-01T00:00:00"], ["1582-10-04T12:00:00.000001"], ["1899-12-31T23:59:59.999999"],
    ["1969-12-31T23:59:59.999", "1969-12-31T23:59:59.999001"], ["1969-12-31T23:59:59.999999"],
    ["1970-01-01T00:00:00"], ["1970-01-01T00:00:00.000001", "1970-01-01T00:00:00.000999"],
    ["2024-02-29T12:34:56.789001"], ["9999-12-31T23:59:59.998999"], ["9999-12-31T23:59:59.999999"],
]  # fmt: skip
_AT = [[datetime.fromisoformat(text) for text in chunk] for chunk in _MOMENTS]
_UTC = [[at.replace(tzinfo=UTC) for at in chunk] for chunk in _AT]
_MILLIS = [[at.replace(microsecond=at.microsecond // 1000 * 1000) for at in chunk] for chunk in _AT]
_TEXTS: list[list[str | None]] = [
    ["", "a"], [None, "nul\0"], ["nul\0a", "nula"], ["p" * 32 + "a", "p" * 32 + "b"], ["p" * 40 + "c", "p" * 70],
    ["q" * 31 + _TRUCK, "q" * 31 + _TRUCK + "z"], ["r" * 31 + _LAST + "a"], ["r" * 32 + _LAST + "a"],
    ["s" * 15 + _BEFORE_SURROGATES + "a"], ["s" * 31 + _BEFORE_SURROGATES + "b"], ["t" * 15 + _LAST + "a"],
    # Above U+10000 by the units of UTF-16, and below it by bytes.
    ["\uffff" * 40], ["\U00010000" * 40],
    [_LAST * 40, _LAST * 70],
]  # fmt: skip
_BYTES: list[list[bytes | None]] = [
    [b"", b"\0"], [None, b"\x7f"], [b"\x80"], [b"a" * 15 + b"\xff" * 5, b"a" * 40], [b"a" * 32 + b"\xff"],
    [b"a" * 64 + b"\xff", b"b"], [b"\xff" * 16 + b"\0"], [b"\xff" * 70], [b"\x80" * 5000, b"c"],
]  # fmt: skip
_ROW = pa.struct([("x", pa.float64()), ("t", pa.string()), ("n", pa.struct([("i", pa.int32())]))])
_ROWS: list[list[Any]] = [
    [{"x": 1.0, "t": "a", "n": {"i": 1}}, {"x": 2.0, "t": "p" * 40, "n": {"i": 2}}],
    [{"x": nan, "t": "b", "n": {"i": 3}}, {"x": 1.0, "t": None, "n": None}],
    [None],
    [None, {"x": 9.0, "t": "c", "n": {"i": None}}],
    [{"x": None, "t": None, "n": {"i": -7}}],
    [{"x": None, "t": None, "n": None}],
    [{"x": 7.0, "t": _LAST * 40, "n": {"i": 7}}],
]
_LISTS: list[list[Any]] = [[[2.0]], [[1.0, nan], []], [[None]], [[], None], [None]]
_MAPS: list[list[Any]] = [[[("a", 1.0)], []], [[("b", nan)]], [[("c", None)], None], [None], [[("d", 2.0)]]]

_FILES_ONLY, _ICEBERG_ONLY = frozenset({FILES}), frozenset({ICEBERG})

CASES = [
    Case("number", pa.int64(), [[number, number + 1] for number in range(0, 40, 10)]),
    Case("boolean", pa.bool_(), [[False], [True], [False, True], [None, True], [None, False]]),
    *(Case(f"int{bits}", kind, _numbers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
      for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))),
    *(Case(f"uint{bits}", kind, _numbers(0, 2**bits - 1), _FILES_ONLY)
      for bits, kind in ((8, pa.uint8()), (16, pa.uint16()), (32, pa.uint32()), (64, pa.uint64()))),
    *(Case(name, kind, numbers(nans, tiny, huge))
      for numbers, more in ((_floats, ""), (_with_nan, "_nan"))
      for name, kind, nans, tiny, huge in (
          (f"double{more}", pa.float64(), _DOUBLES, 5e-324, 1.7976931348623157e308),
          (f"float{more}", pa.float32(), _FLOATS, 1.401298464324817e-45, 3.4028234663852886e38))),
    Case("all_nan", pa.float64(), [[1.0], *[[nan]] * 17]),
    Case("never", pa.string(), []),
    *(Case(f"decimal{digits}_{scale}", pa.decimal128(digits, scale), _decimals(digits, scale))
      for digits, scale in ((9, 2), (9, 9), (15, 5), (18, 0), (18, 4), (38, 0), (38, 10))),
    Case("digits", pa.decimal128(38, 9), [[Decimal(text)] for text in _DIGITS]),
    Case("date", pa.date32(), [[date.fromisoformat(day)] for day in _DAYS]),
    Case("utc", pa.timestamp("us", "UTC"), _UTC),
    Case("local", pa.timestamp("us"), _AT),
    Case("millis", pa.timestamp("ms"), _MILLIS),
    Case("time", pa.time64("us"), [[time(0)], [time(12, 0, 0, 1)], [time(23, 59, 59, 999_999)]], _ICEBERG_ONLY),
    Case("string", pa.string(), _TEXTS),
    Case("long", pa.string(), [["u" * 5000, "v"], ["w"], ["x"], ["y" * 5000]]),
    Case("binary", pa.binary(), _BYTES),
    Case("fixed", pa.binary(3), [[b"\0\0\1"], [b"\x7f\xff\xff"], [b"\x80\0\0"], [b"\xff\xff\xff"]], _ICEBERG_ONLY),
    Case("struct", _ROW, _ROWS),
    # In Parquet it has the path of the field `x` of `struct`, and NaN in other chunks. Iceberg has one of them only.
    Case("struct.x", pa.float64(), [[1.0, 1.5], [2.0, 3.0], [nan, 4.0], [9.0]], frozenset({FILES, DELTA})),
    Case("list", pa.list_(pa.float64()), _LISTS),
    Case("map", pa.map_(pa.string(), pa.float64()), _MAPS),
]  # fmt: skip


def chunks(sink: str) -> list[pa.RecordBatch]:
    """Return the rows for a sink, in chunks, with all columns that it takes."""
    cases = [case for case in CASES if sink in case.sinks]
    return [
        pa.RecordBatch.from_arrays([case.column(chunk) for case in cases], names=[case.name for case in cases])
        for chunk in range(max(len(case.chunks) for case in cases))
    ]
