"""The entries of a step's log: format 1, JSON, one object each; and the serialized values that they hold.

A large state or committable lies beside the log, and its entry holds its name and digest. A task that cannot reach the
log gets its states whole, with its ticket.
Every entry holds `format`, `kind`, `step`, `incarnation` and `time` (UTC, ISO 8601). `docs/recovery-format.md`
describes all fields. A release reads every format since 1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from outfall.errors import RecordError
from outfall.recovery.log import LogEntry, RecoveryLog
from outfall.serde import SimpleVersionedSerializer

FORMAT = 1

LARGE = 64 * 1024
"""Bytes above which a state or a committable is stored beside the log."""

CARRIED = 64 * 1024 * 1024
"""Bytes of all states of a step together, where tasks cannot reach the log and every ticket carries them."""

T = TypeVar("T")


class StoredModel(BaseModel):
    """Base of everything that is stored: unknown fields are refused, since dropping one may drop data."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BlobRef(StoredModel):
    """A large state or committable that lies beside the log."""

    name: str
    length: int
    sha256: str


class HeldRecord(StoredModel):
    """Rows that a state holds and the target does not."""

    rows: int
    oldest: datetime | None = None


class StoredValue(StoredModel):
    """A serialized value: its serializer's version, and its bytes as text, as base64 or beside the log."""

    version: int
    text: str | None = None
    base64: str | None = None
    blob: BlobRef | None = None
    held: HeldRecord | None = None
    """Of a state that holds rows back."""

    @classmethod
    def of(cls, version: int, data: bytes) -> StoredValue:
        """Hold bytes in the record itself, readable where they are UTF-8."""
        try:
            return cls(version=version, text=data.decode())
        except UnicodeDecodeError:
            return cls(version=version, base64=base64.b64encode(data).decode())

    def inline(self) -> bytes | None:
        """Return the bytes, or `None` when they lie beside the log."""
        if self.text is not None:
            return self.text.encode()
        return None if self.base64 is None else base64.b64decode(self.base64)


class StoredCommittable(StoredModel):
    """A committable with where it comes from."""

    value: StoredValue
    worker_index: int
    part: str | None = None


class WinningAttempt(StoredModel):
    """The winning attempt of a part."""

    generation: int
    epoch: int
    attempt: int


class _Entry(StoredModel):
    format: int = FORMAT
    step: str
    incarnation: str
    time: datetime = Field(default_factory=lambda: datetime.now(UTC))


class ChildRecord(StoredModel):
    """One of the sinks that a sink consists of."""

    sink: str
    target: str | None
    since: int = 0
    """The first epoch that it could get: 0, unless it was added later."""


class Begin(_Entry):
    """A driver takes the step over. The entry's number is its generation."""

    kind: Literal["begin"] = "begin"
    epoch: int | None
    """`None` where the API learns it only in the tasks and any would do."""
    outfall: str
    """The version that wrote it."""
    sink: str
    target: str | None
    query_id: str | None
    driver: str
    """Host and process id, for people."""
    nonce: str = Field(default_factory=lambda: secrets.token_hex(8))
    """The token: makes two drivers' entries differ, so that a store can tell its own from another's after a lost reply,
    and a target the drivers of two copies of a log."""
    bases: dict[str, StoredValue] = {}
    """Where parts start that had data before their first epoch."""
    writer_states: list[StoredValue] = []
    """States adopted from other steps, once."""
    drain: bool = False
    """Whether this epoch has no batch, and delivers what former ones held back."""
    drains: int = 0
    """How many drains came before: the epoch's number is the batch id and this."""
    children: dict[str, ChildRecord] = {}
    """The sinks that the sink consists of, by name; those of a child that consists of others as `child.grandchild`."""


class Prepared(_Entry):
    """All tasks answered; what they wrote is durable. From here the epoch is finished by what is recorded."""

    kind: Literal["prepared"] = "prepared"
    epoch: int
    generation: int
    query_id: str | None
    states: dict[str, StoredValue] = {}
    writer_states: list[StoredValue] = []
    committables: list[StoredCommittable] = []
    counts: dict[str, int] = {}
    seconds: float = 0.0


class Committing(_Entry):
    """From here committables of the epoch may be published."""

    kind: Literal["committing"] = "committing"
    epoch: int
    generation: int


class Committed(_Entry):
    """All committables of one child are published; they are not offered again."""

    kind: Literal["committed"] = "committed"
    epoch: int
    generation: int
    child: str


class Completed(_Entry):
    """The epoch is applied."""

    kind: Literal["completed"] = "completed"
    epoch: int
    generation: int
    prepared: int
    """The number of its PREPARED entry."""
    counts: dict[str, int] = {}
    seconds: float = 0.0
    task_seconds: float = 0.0
    """From BEGIN to PREPARED; what is left of `seconds` is committing."""
    guarantee: str = ""
    drain: bool = False
    drains: int = 0
    held_since: datetime | None = None
    """When the oldest row was written that is still held back."""
    published: dict[str, int] = {}
    """The newest epoch that was published to each target, carried forward: by the name of a child, as `children` in
    BEGIN has it; by the empty name for a sink that consists of no others."""
    totals: dict[str, int] = {}
    """The sums of `counts` since the step's first epoch, carried forward, but for peaks and `rows_held`. Beside them
    `epochs`, `restarts` (how often an epoch had to be begun again), and the milliseconds `task_ms` and `commit_ms`."""


class Abandoned(_Entry):
    """The epoch's data was lost before any of it was published; nothing of it can be published any more."""

    kind: Literal["abandoned"] = "abandoned"
    epoch: int
    generation: int
    reason: str


class Skipped(_Entry):
    """Spark brought a completed epoch again; its rows were read and dropped."""

    kind: Literal["skipped"] = "skipped"
    epoch: int
    drains: int = 0
    counts: dict[str, int] = {}


class Moved(_Entry):
    """The step goes on in another store; whoever goes on here is fenced."""

    kind: Literal["moved"] = "moved"
    to: str
    """The URL of the other store."""


class Repaired(_Entry):
    """`outfall repair` moves files of Spark's checkpoint aside; a driver that still runs is fenced.

    One is appended before the first file is moved, and one when all are.
    """

    kind: Literal["repaired"] = "repaired"
    checkpoint: str
    files: list[str]
    """Below the checkpoint, without their checksums."""
    aside: str
    """The directory that they are moved to, below the checkpoint."""
    done: bool


Entry = Annotated[
    Begin | Prepared | Committing | Committed | Completed | Abandoned | Skipped | Moved | Repaired,
    Field(discriminator="kind"),
]

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


def encode_entry(entry: Any) -> bytes:
    """Turn an entry into the bytes that a log stores."""
    return str(entry.model_dump_json(exclude_none=False)).encode()


def decode_entry(raw: LogEntry, step_id: str) -> Entry:
    """Turn a log's bytes into an entry.

    Raises:
        RecordError: the bytes are no entry, of a newer format, or of another step.
    """
    do = "restore the recovery data from a copy, or start the query with a new checkpoint"
    try:
        document = json.loads(raw.data)
        found = document["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"recovery entry {raw.number} is damaged ({len(raw.data)} bytes)", step=step_id, do=do
        ) from error
    if found != FORMAT:
        raise RecordError(
            f"recovery entry {raw.number} has format {found}; this version reads format {FORMAT}",
            step=step_id,
            do="run the release that wrote it, or a newer one",
        )
    try:
        entry = _ENTRY.validate_python(document)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['type']}" for item in error.errors())
        raise RecordError(f"recovery entry {raw.number} is damaged", step=step_id, why=problems, do=do) from error
    if entry.step != step_id:
        raise RecordError(f"recovery entry {raw.number} belongs to step {entry.step!r}", step=step_id, do=do)
    return entry


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
        RecordError: what lies beside the log is missing, or not what was recorded.
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
            f"the value {blob.name} is not the one that was recorded",
            why=f"{blob.length} bytes were recorded, {len(data)} are there",
            do="restore the recovery data from a copy",
        )
    return data
