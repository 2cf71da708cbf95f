"""The bytes of COPY, against vectors made by hand from the manual's pages on the two formats."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ValueRefusedError
from outfall.postgres.copy.stream import CopyEncoder
from tests.unit.support.postgres_columns import column

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(4) + bytes(4)
TRAILER = b"\xff\xff"


def written(batch: pa.RecordBatch, *types: str) -> tuple[str, bytes]:
    encoder = CopyEncoder(batch.schema, [column(type) for type in types])
    return encoder.format, encoder.header() + encoder.encode(batch) + encoder.trailer()


def one(value: Any, kind: pa.DataType, type: str) -> bytes:
    """The field of a value in the binary format."""
    format, data = written(pa.record_batch({"c": pa.array([value], kind)}), type)
    assert format == "binary"
    assert data.startswith(HEADER + b"\0\1")
    assert data.endswith(TRAILER)
    field = data[len(HEADER) + 2 : -2]
    assert int.from_bytes(field[:4], "big", signed=True) in (len(field) - 4, -1)
    return field[4:]


@pytest.mark.parametrize(
    ("value", "kind", "type", "expected"),
    [
        (True, pa.bool_(), "bool", b"\1"),
        (-2, pa.int8(), "int2", b"\xff\xfe"),
        (-2, pa.int64(), "int4", b"\xff\xff\xff\xfe"),
        (1, pa.int16(), "int8", bytes(7) + b"\1"),
        (1.0, pa.float32(), "float8", b"\x3f\xf0" + bytes(6)),
        (Decimal("12345.678"), pa.decimal128(8, 3), "numeric", bytes.fromhex("0003 0001 0000 0003 0001 0929 1a7c")),
        (-1, pa.int32(), "numeric", bytes.fromhex("0001 0000 4000 0000 0001")),
        ("Grüße", pa.string(), "varchar(5)", "Grüße".encode()),
        ("sad", pa.string(), "mood", b"sad"),
        ('{"a":1}', pa.string(), "jsonb", b'\1{"a":1}'),
        ({"a": None}, pa.struct([("a", pa.int32())]), "json", b'{"a":null}'),
        (
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            pa.string(),
            "uuid",
            bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        ),
        (b"\0\xff", pa.binary(), "bytea", b"\0\xff"),
        (date(2000, 1, 2), pa.date32(), "date", bytes(3) + b"\1"),
        (date(1999, 12, 31), pa.date32(), "date", b"\xff" * 4),
        (946_684_800_000_001, pa.timestamp("us", "Europe/Berlin"), "timestamptz", bytes(7) + b"\1"),
        (3_600_000_001_000, pa.time64("ns"), "time", (3_600_000_001).to_bytes(8, "big")),
        (86_400_000_001, pa.duration("us"), "interval", (86_400_000_001).to_bytes(8, "big") + bytes(8)),
        (
            [1, None],
            pa.list_(pa.int16()),
            "int4[]",
            # dimensions, whether there are NULLs, the element's type, length, lower bound
            bytes.fromhex("00000001 00000001 00000017 00000002 00000001 00000004 00000001 ffffffff"),
        ),
        (None, pa.int32(), "int4", b""),
        (None, pa.null(), "uuid", b""),
    ],
)
def test_binary_fields(value: Any, kind: pa.DataType, type: str, expected: bytes) -> None:
    assert one(value, kind, type) == expected


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        (pa.string(), "inet"),
        (pa.string(), "int4"),
        (pa.string(), "int4[]"),
        (pa.float64(), "numeric"),
        # Their elements' types are not those that stand in the binary form.
        (pa.list_(pa.string()), "varchar[]"),
        (pa.list_(pa.timestamp("us", "UTC")), "timestamptz[]"),
        (pa.list_(pa.string()), "uuid[]"),
    ],
    ids=str,
)
def test_one_column_that_is_only_read_as_text_makes_the_copy_text(kind: pa.DataType, type: str) -> None:
    schema = pa.schema([("c", kind), ("d", pa.int32())])
    assert CopyEncoder(schema, [column(type), column("int4")]).format == "text"


def test_text_lines() -> None:
    batch = pa.record_batch(
        {
            "a": pa.array(["10.0.0.1", None]),
            "b": pa.array(["tab\tline\nreturn\rback\\slash", "\\N"]),
            "c": pa.array([b"\0\xff", None]),
            "d": pa.array([["a\\b", 'q"', None], []]),
            "e": pa.array([-1, None], pa.timestamp("us", "Asia/Tokyo")),
            "f": pa.array([-719_163, 0], pa.int32()).cast(pa.date32()),
            "g": pa.array([-1, 3_600_000_000], pa.duration("us")),
        }
    )
    format, data = written(batch, "inet", "text", "bytea", "text[]", "timestamptz", "date", "interval")
    assert format == "text"
    assert data.decode().split("\n") == [
        "10.0.0.1\ttab\\tline\\nreturn\\rback\\\\slash\t\\\\x00ff\t"
        '{"a\\\\\\\\b","q\\\\"",NULL}\t1969-12-31 23:59:59.999999+00\tJ1721425\t-0 hours -0.000001 seconds',
        "\\N\t\\\\N\t\\N\t{}\t\\N\t1970-01-01\t1 hours 0.000000 seconds",
        "",
    ]


def test_batches_follow_each_other_and_refused_ones_leave_no_trace() -> None:
    schema = pa.schema([("c", pa.int64())])
    encoder = CopyEncoder(schema, [column("int2")])
    out = encoder.header()
    for values in ([1], [2**15], [], [2]):
        try:
            out += encoder.encode(pa.record_batch({"c": pa.array(values, pa.int64())}))
        except ValueRefusedError:
            assert values == [2**15]
    assert out + encoder.trailer() == HEADER + b"\0\1\0\0\0\2\0\1" + b"\0\1\0\0\0\2\0\2" + TRAILER
