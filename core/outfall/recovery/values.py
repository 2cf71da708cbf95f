"""Values in records: serialized, and laid beside the log when they are large."""

from __future__ import annotations

import hashlib
from typing import TypeVar

from outfall.errors import RecordError
from outfall.recovery.entries import BlobRef, StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.serde import SimpleVersionedSerializer

T = TypeVar("T")

LARGE = 64 * 1024
"""Bytes above which a state is stored beside the log."""


def store_value(serializer: SimpleVersionedSerializer[T], value: T) -> StoredValue:
    """Serialize a value into a record.

    Raises:
        SerializationError: the value cannot be stored.
    """
    return StoredValue.of(serializer.version, serializer.serialize(value))


def store_state(
    serializer: SimpleVersionedSerializer[T], value: T, *, log: RecoveryLog, name: str, generation: int
) -> StoredValue:
    """Serialize a state; one of more than 64 KiB is written beside the log at once, and recorded by name and digest."""
    data = serializer.serialize(value)
    if len(data) <= LARGE:
        return StoredValue.of(serializer.version, data)
    blob = BlobRef(
        name=log.write_state(name, data, generation=generation),
        length=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return StoredValue(version=serializer.version, blob=blob)


def copy_value(
    stored: StoredValue, *, source: RecoveryLog, target: RecoveryLog, name: str, generation: int
) -> StoredValue:
    """Return the value as a record of another log can hold it: a large one is copied beside that log."""
    if stored.inline() is not None:
        return stored
    data = _read_blob(stored, source)
    blob = BlobRef(
        name=target.write_state(name, data, generation=generation),
        length=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return stored.model_copy(update={"blob": blob})


def load_value(serializer: SimpleVersionedSerializer[T], stored: StoredValue, *, log: RecoveryLog | None = None) -> T:
    """Give back the value of a record.

    Raises:
        SerializationError: the version is unknown, or the bytes are damaged.
        RecordError: a large state is missing or not the one that was recorded.
    """
    data = stored.inline()
    if data is None:
        data = _read_blob(stored, log)
    return serializer.deserialize(stored.version, data)


def _read_blob(stored: StoredValue, log: RecoveryLog | None) -> bytes:
    blob = stored.blob
    if blob is None or log is None:
        raise RecordError("a recorded value has no content", do="restore the recovery data from a copy")
    data = log.read_state(blob.name)
    if len(data) != blob.length or hashlib.sha256(data).hexdigest() != blob.sha256:
        raise RecordError(
            f"the state {blob.name} is not the one that was recorded",
            why=f"{blob.length} bytes were recorded, {len(data)} are there",
            do="restore the recovery data from a copy",
        )
    return data
