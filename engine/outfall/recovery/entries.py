"""The entries of a step's log, one JSON object each, with serialized values.

A large state or committable is stored next to the log, and its entry contains its name and digest. If tasks cannot
reach the log, their ticket contains the states.
Every entry has `format`, `kind`, `step`, `incarnation` and `time` (UTC, ISO 8601). `docs/recovery-format.md` describes
all fields, and `RELEASING.md` how they may change.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_serializer,
    model_serializer,
)

from outfall.contexts import RowIdentity
from outfall.errors import RecordError
from outfall.recovery.log import LogEntry, RecoveryLog
from outfall.serde import SimpleVersionedSerializer, parse_json

FORMAT = 1
"""The newest format that this release reads; it reads all formats from 1 on."""

LARGE = 64 * 1024
"""Size in bytes above which a state or a committable is stored next to the log."""

CARRIED = 64 * 1024 * 1024
"""Maximum size in bytes of all states of a step if tasks cannot reach the log and every ticket contains the states."""

T = TypeVar("T")


def _in_utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


class StoredModel(BaseModel):
    """Base of all stored models. Ignores unknown fields: a newer release raises `format` if one must not be ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


Moment = Annotated[
    datetime, Field(ge=datetime(2, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC)), AfterValidator(_in_utc)
]
"""A time that has a date in every zone."""
Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]
"""A duration whose sums are finite."""
Count = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""A number that can be shown and divided."""


class _AsFirstWritten(BaseModel):
    """What leaves out the default of a field that the first release did not know."""

    @model_serializer(mode="wrap")
    def _as_first_written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = write(self)
        return {name: value for name, value in found.items() if name not in _LATER or value}


_LATER = ("row_identity", "columns", "tables", "others")
"""The fields that the first release did not know."""


class _OfSink(_AsFirstWritten):
    """What the records of a sink have in common."""

    row_identity: RowIdentity | None = None
    """What identifies a row in the target. `None` if rows are added, and in records of earlier releases."""

    @field_serializer("row_identity", mode="wrap")
    def _without_tables(self, identity: RowIdentity | None, write: SerializerFunctionWrapHandler) -> Any:
        found = write(identity)
        if identity is not None and not identity.tables:
            del found["tables"]
        return found


class BlobRef(StoredModel):
    """A large state or committable next to the log."""

    name: str
    length: Count
    sha256: str


class BufferedRecord(StoredModel):
    """Rows in a state that are not in the target."""

    rows: Count
    oldest: Moment | None = None


class StoredValue(StoredModel):
    """A serialized value: the version of its serializer, and its bytes as text, as base64 or next to the log."""

    version: Count
    text: str | None = None
    base64: str | None = None
    blob: BlobRef | None = None
    held: BufferedRecord | None = None
    """For a state with buffered rows."""

    @classmethod
    def of(cls, version: int, data: bytes) -> StoredValue:
        """Store bytes in the record itself, readable if they are UTF-8."""
        try:
            return cls(version=version, text=data.decode())
        except UnicodeDecodeError:
            return cls(version=version, base64=base64.b64encode(data).decode())

    def inline(self) -> bytes | None:
        """Return the bytes, or `None` if they are stored next to the log."""
        if self.text is not None:
            return self.text.encode()
        return None if self.base64 is None else base64.b64decode(self.base64)


class StoredCommittable(StoredModel):
    """A committable with its origin."""

    value: StoredValue
    worker_index: Count
    part: str | None = None


class WinningAttempt(StoredModel):
    """The winning attempt of a part."""

    generation: Count
    epoch: Count
    attempt: Count


class _Entry(StoredModel):
    format: int = 1
    """The lowest format that a release must know to read this entry: not that of the writer."""
    step: str
    incarnation: str
    time: Moment = Field(default_factory=lambda: datetime.now(UTC))


class ChildRecord(_OfSink, StoredModel):
    """One of the sinks in a composite sink."""

    sink: str
    target: str | None
    since: Count = 0
    """The first epoch that it could receive: 0, unless it was added later."""


class Begin(_OfSink, _Entry):
    """A driver takes over the step. The number of the entry is its generation."""

    kind: Literal["begin"] = "begin"
    epoch: Count | None
    """`None` if the API learns it only in the tasks, and any is valid."""
    outfall: str
    """The version that wrote the entry."""
    sink: str
    target: str | None
    query_id: str | None
    driver: str
    """Host and process id; informative."""
    token: str = Field(default_factory=lambda: secrets.token_hex(8), alias="nonce")
    """Random; stored as `nonce`. It makes the entries of two drivers differ. A store recognizes its own entry by it
    after a lost response, and a target recognizes the drivers of two copies of a log."""
    bases: dict[str, StoredValue] = {}
    """The start of parts that had data before their first epoch."""
    writer_states: list[StoredValue] = []
    """States adopted from other steps."""
    drain: bool = False
    """Whether this epoch has no batch and delivers the buffered rows of earlier epochs."""
    drains: Count = 0
    """The number of earlier drains: the epoch's number is the batch id plus this number."""
    columns: str = ""
    """A digest of the columns of the epoch's rows; empty if the driver does not know them."""
    children: dict[str, ChildRecord] = {}
    """The sinks in a composite sink by name; those of an inner composite sink as `child.grandchild`."""


class Prepared(_Entry):
    """All tasks returned their results, and their data is durable. The epoch is finished from this record."""

    kind: Literal["prepared"] = "prepared"
    epoch: Count
    generation: Count
    query_id: str | None
    states: dict[str, StoredValue] = {}
    writer_states: list[StoredValue] = []
    committables: list[StoredCommittable] = []
    counts: dict[str, Count] = {}
    seconds: Seconds = 0.0


class Committing(_Entry):
    """From here on, committables of the epoch may be published."""

    kind: Literal["committing"] = "committing"
    epoch: Count
    generation: Count


class Committed(_AsFirstWritten, _Entry):
    """All committables of one child, or of several, are published and not committed again."""

    kind: Literal["committed"] = "committed"
    epoch: Count
    generation: Count
    child: str
    others: tuple[str, ...] = ()
    """Children that were committed at the same time."""


class Completed(_AsFirstWritten, _Entry):
    """The epoch is applied."""

    kind: Literal["completed"] = "completed"
    epoch: Count
    generation: Count
    prepared: Count
    """The number of the PREPARED entry."""
    counts: dict[str, Count] = {}
    seconds: Seconds = 0.0
    task_seconds: Seconds = 0.0
    """The duration from BEGIN to PREPARED; the rest of `seconds` is the commit."""
    guarantee: str = ""
    drain: bool = False
    drains: Count = 0
    held_since: Moment | None = None
    """The write time of the oldest row that is still buffered."""
    published: dict[str, Count] = {}
    """The newest epoch that was published to each target, carried forward. The keys are the names of children, as in
    `Begin.children`, or the empty name for a sink that is not composite."""
    totals: dict[str, Count] = {}
    """The sums of `counts` since the step's first epoch, carried forward, except peaks and `rows_held`. Also `epochs`,
    `restarts` (how often an epoch began again), and the milliseconds `task_ms` and `commit_ms`."""
    tables: dict[str, Count] = {}
    """The tables with the most rows of the epoch, if a column names them, and these numbers. `max_tables` in `counts`
    is the number of all."""


class Abandoned(_Entry):
    """Data of the epoch was lost before any was published, and none of it can be published any more."""

    kind: Literal["abandoned"] = "abandoned"
    epoch: Count
    generation: Count
    reason: str


class Skipped(_Entry):
    """Spark replayed a completed epoch. Its rows were read and dropped."""

    kind: Literal["skipped"] = "skipped"
    epoch: Count
    drains: Count = 0
    counts: dict[str, Count] = {}


class Moved(_Entry):
    """The step continues in another store. A driver that continues here is fenced."""

    kind: Literal["moved"] = "moved"
    to: str
    """The URL of the other store."""


class Repaired(_Entry):
    """`outfall repair` moves files of Spark's checkpoint away. A driver that still runs is fenced.

    One entry is appended before the first file is moved, and one after the last.
    """

    kind: Literal["repaired"] = "repaired"
    checkpoint: str
    files: list[str]
    """Paths relative to the checkpoint, without checksum files."""
    aside: str
    """The directory that they are moved to, relative to the checkpoint."""
    done: bool


Entry = Annotated[
    Begin | Prepared | Committing | Committed | Completed | Abandoned | Skipped | Moved | Repaired,
    Field(discriminator="kind"),
]

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


def encode_entry(entry: Any) -> bytes:
    """Return the bytes of an entry for a log."""
    return str(entry.model_dump_json(by_alias=True)).encode()


def decode_entry(raw: LogEntry, step_id: str) -> Entry:
    """Return the entry in the bytes of a log.

    Raises `RecordError` if the bytes are not an entry, or the entry is of a newer format or another step.
    """
    do = "restore the recovery data from a copy, or start the query with a new checkpoint"
    try:
        document = parse_json(raw.data)
        found = document["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"recovery entry {raw.number} is damaged ({len(raw.data)} bytes)", step=step_id, do=do
        ) from error
    if found not in range(1, FORMAT + 1):
        raise RecordError(
            f"recovery entry {raw.number} has format {found}; this version reads format {FORMAT}",
            step=step_id,
            do="run the release that wrote the entry, or a newer one",
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
    """Serialize a value into a record, or raise `SerializationError`."""
    return StoredValue.of(serializer.version, serializer.serialize(value))


def store_state(
    serializer: SimpleVersionedSerializer[T], value: T, *, log: RecoveryLog | None, name: str, generation: int
) -> StoredValue:
    """Serialize a state. One of more than 64 KiB is written next to the log, and recorded by name and digest.

    Without a log, the record contains a state of any size.
    """
    data = serializer.serialize(value)
    if log is None or len(data) <= LARGE:
        return StoredValue.of(serializer.version, data)
    blob = _write_blob(data, log, name, generation)
    return StoredValue(version=serializer.version, blob=blob)


def carry_out(stored: StoredValue, log: RecoveryLog) -> StoredValue:
    """Return the value with its content, and its reference if it has one, for a task that cannot reach the log."""
    if stored.blob is None:
        return stored
    data = _read_blob(stored, log)
    return StoredValue.of(stored.version, data).model_copy(update={"blob": stored.blob, "held": stored.held})


def carry_in(stored: StoredValue, log: RecoveryLog, *, name: str, generation: int) -> StoredValue:
    """Return the value as the log records it: a large one is written next to the log."""
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
    """Return the value as a record of another log. A large one is copied next to that log."""
    if stored.inline() is not None:
        return stored
    blob = _write_blob(_read_blob(stored, source), target, name, generation)
    return stored.model_copy(update={"blob": blob})


def load_value(serializer: SimpleVersionedSerializer[T], stored: StoredValue, *, log: RecoveryLog | None = None) -> T:
    """Return the deserialized value of a record.

    Raises `SerializationError` if the version is unknown or the bytes are damaged, and `RecordError` if the data next
    to the log is missing or is not the recorded data.
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
            why=f"{blob.length} bytes were recorded, {len(data)} were found",
            do="restore the recovery data from a copy",
        )
    return data
