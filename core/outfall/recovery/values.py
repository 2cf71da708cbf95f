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

CARRIED = 64 * 1024 * 1024
"""Bytes of all states of a step together, where tasks cannot reach the log and every ticket carries them."""


def store_value(serializer: SimpleVersionedSerializer[T], value: T) -> StoredValue:
    """Serialize a value into a record.

    Raises:
        SerializationError: the value cannot be stored.
    """
    return StoredValue.of(serializer.version, serializer.serialize(value))


def store_state(
    serializer: SimpleVersionedSerializer[T], value: T, *, log: RecoveryLog | None, name: str, generation: int
) -> StoredValue:
    """Serialize a state; one of more than 64 KiB is written beside the log at once, and recorded by name and digest.

    Without a log it is held in the value, whatever its size.
    """
    data = serializer.serialize(value)
    if log is None or len(data) <= LARGE:
        return StoredValue.of(serializer.version, data)
    blob = _write_blob(data, log, name, generation)
    return StoredValue(version=serializer.version, blob=blob)


def carry_out(stored: StoredValue, log: RecoveryLog) -> StoredValue:
    """Return the value with its bytes in it, and where they lie beside the log, for a task that cannot reach it."""
    if stored.blob is None:
        return stored
    data = _read_blob(stored, log)
    return StoredValue.of(stored.version, data).model_copy(update={"blob": stored.blob, "held": stored.held})


def carry_in(stored: StoredValue, log: RecoveryLog, *, name: str, generation: int) -> StoredValue:
    """Return the value as the log records it, after it travelled: a large one lies beside the log."""
    if stored.blob is None:
        data = stored.inline() or b""
        if len(data) <= LARGE:
            return stored
        stored = stored.model_copy(update={"blob": _write_blob(data, log, name, generation)})
    return stored.model_copy(update={"text": None, "base64": None})


def _write_blob(data: bytes, log: RecoveryLog, name: str, generation: int) -> BlobRef:
    stored = log.write_state(name, data, generation=generation)
    return BlobRef(name=stored, length=len(data), sha256=hashlib.sha256(data).hexdigest())


def copy_value(
    stored: StoredValue, *, source: RecoveryLog, target: RecoveryLog, name: str, generation: int
) -> StoredValue:
    """Return the value as a record of another log can hold it: a large one is copied beside that log."""
    if stored.inline() is not None:
        return stored
    blob = _write_blob(_read_blob(stored, source), target, name, generation)
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
