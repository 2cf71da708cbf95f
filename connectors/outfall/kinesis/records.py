"""Rows as records of bytes."""

from __future__ import annotations

import base64
import json
from typing import NotRequired, TypedDict

import pyarrow as pa

from outfall.encode import FormatOptions, encoder
from outfall.errors import SerializationError, ValueRefusedError
from outfall.serde import SimpleVersionedSerializer


class Record(TypedDict):
    """An entry of PutRecords, or with its data alone of PutRecordBatch."""

    Data: bytes
    PartitionKey: NotRequired[str]
    ExplicitHashKey: NotRequired[str]


def data_of(batch: pa.RecordBatch, column: str | None, *, end: bytes = b"") -> list[bytes]:
    """Return each row's data: a column's bytes, or the row as one JSON object and `end`.

    Raises:
        ValueRefusedError: the column is NULL, or JSON has no form for a value.
    """
    if column is None:
        lines = bytes(encoder(FormatOptions(format="jsonl"), batch.schema).encode(batch)).split(b"\n")[:-1]
        return [line + end for line in lines]
    values = batch.column(column)
    if values.null_count:
        raise ValueRefusedError(f"the data column {column!r} is NULL in a row", do="filter such rows out")
    return values.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


class RecordSerializer(SimpleVersionedSerializer[Record]):
    """JSON, with the data in base64."""

    @property
    def version(self) -> int:
        return 1

    def serialize(self, value: Record) -> bytes:
        return json.dumps(value | {"Data": base64.b64encode(value["Data"]).decode()}).encode()

    def deserialize(self, version: int, data: bytes) -> Record:
        self.check_version(version)
        try:
            stored = json.loads(data)
            return stored | {"Data": base64.b64decode(stored["Data"], validate=True)}  # type: ignore[no-any-return]
        except (ValueError, KeyError, TypeError) as error:
            raise SerializationError("a stored record is damaged", why=str(error)) from error
