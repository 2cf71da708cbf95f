"""Converts rows to records of bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import SerializationError, ValueRefusedError
from outfall.formats import FormatOptions, encoder
from outfall.serde import SimpleVersionedSerializer, parse_json


class AwsRecord(TypedDict):
    """An entry of PutRecords, or with data only, of PutRecordBatch."""

    Data: bytes
    PartitionKey: NotRequired[str]
    ExplicitHashKey: NotRequired[str]


def data_of(batch: pa.RecordBatch, column: str | None, *, end: bytes = b"") -> list[bytes]:
    """Return each row's data: a column's bytes, or the row as one JSON object and `end`.

    Raises `ValueRefusedError` if the column is NULL, or JSON cannot represent a value.
    """
    if column is None:
        lines = bytes(encoder(FormatOptions(format="jsonl"), batch.schema).encode(batch)).split(b"\n")[:-1]
        return [line + end for line in lines]
    values = batch.column(column)
    if values.null_count:
        raise ValueRefusedError(f"the data column {column!r} is NULL in a row", do="filter such rows out")
    return values.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


def texts_of(batch: pa.RecordBatch, column: str) -> list[str]:
    """Return the strings of a column that determines the shard.

    Raises `ValueRefusedError` if a value is NULL or not UTF-8.
    """
    try:
        values = pc.cast(batch.column(column), pa.string())
        if values.null_count:
            raise ValueRefusedError(
                f"the column {column!r}, which determines the shard, is NULL in a row", do="replace the NULLs"
            )
        return values.to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise ValueRefusedError(
            f"the column {column!r}, which determines the shard, is not UTF-8 in a row",
            do="encode it, for example with hex()",
        ) from error


def partition_keys(keys: Iterable[Any]) -> list[str]:
    """Return valid partition keys (PutRecordsRequestEntry in the API reference of the service).

    Raises `ValueRefusedError` if a key is not a string, empty or too long.
    """
    found = list(keys)
    for key in found:
        if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
            what = f"a string of {len(key)} characters" if isinstance(key, str) else f"a {type(key).__name__}"
            raise ValueRefusedError(
                f"the partition key of a row is {what}, and Kinesis requires strings of 1 to {_LONGEST_KEY} characters",
                do="correct the column or the function of partition_key, or remove such rows",
            )
    return found


_LONGEST_KEY = 256


class AwsRecordSerializer(SimpleVersionedSerializer[AwsRecord]):
    """JSON, with the data in base64."""

    def serialize(self, value: AwsRecord) -> bytes:
        return json.dumps(value | {"Data": base64.b64encode(value["Data"]).decode()}).encode()

    def deserialize(self, version: int, data: bytes) -> AwsRecord:
        self.check_version(version)
        try:
            stored = parse_json(data)
            return stored | {"Data": base64.b64decode(stored["Data"], validate=True)}  # type: ignore[no-any-return]
        except (ValueError, KeyError, TypeError) as error:
            raise SerializationError("a stored record is damaged", why=str(error)) from error
