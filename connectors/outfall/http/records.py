"""Converts rows to records that are ready to be sent, each with its key, and records to request bodies.

The keys are those of draft-ietf-httpapi-idempotency-key-header-07.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from outfall.contexts import WriterInitContext
from outfall.errors import SerializationError, ValueRefusedError
from outfall.formats import Encoder, FormatOptions, encoder, member
from outfall.http.options import HttpOptions, Shape
from outfall.http.templates import UrlTemplate, texts
from outfall.serde import SimpleVersionedSerializer, parse_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class HttpRecord(NamedTuple):
    """One row: a JSON object in UTF-8, its URL, and its own idempotency key, if any."""

    body: bytes
    url: str
    key: str | None = None


class RecordMaker:
    """Converts batches to records by column. The bytes of each record are a slice of one buffer.

    `content` creates the keys if they depend on the record's content.
    """

    def __init__(self, options: HttpOptions, content: ContentKeys | None = None) -> None:
        self._template = UrlTemplate(options.url)
        self._column = options.key_column if options.idempotency == "row" else None
        self._item = options.key_column if options.idempotency == "item" else None
        self._content = content
        self._format = FormatOptions(format="jsonl", ignore_null_fields=options.ignore_null_fields)
        self._encoder: Encoder | None = None

    def make(self, batch: pa.RecordBatch) -> list[HttpRecord]:
        """Return the batch's rows in order.

        Raises `ValueRefusedError` if a value cannot be written as JSON, as part of a URL, or as a key.
        """
        if self._encoder is None or not self._encoder.schema.equals(batch.schema):
            self._encoder = encoder(self._format, batch.schema)
        # JSON escapes line breaks, so each one ends a record.
        bodies = self._encoder.encode(batch).to_pybytes().split(b"\n")
        bodies.pop()
        urls = self._template.expand(batch) or repeat(self._template.url)
        if self._item is not None:
            texts(batch, self._item, "the id of an item")
        return list(map(HttpRecord, bodies, urls, self._keys(batch, bodies, urls)))

    def _keys(
        self, batch: pa.RecordBatch, bodies: list[bytes], urls: list[str] | repeat[str]
    ) -> list[str] | repeat[None]:
        if self._column is not None:
            column = self._column
            return [user_key(text, column) for text in texts(batch, column, "the idempotency key")]
        if self._content is not None:
            key: Callable[[str, bytes], str] = self._content.key
            return [key(url, body) for url, body in zip(urls, bodies, strict=False)]
        return repeat(None)


class HttpRecordSerializer(SimpleVersionedSerializer[HttpRecord]):
    """JSON: body and URL as strings, and the key."""

    def serialize(self, value: HttpRecord) -> bytes:
        return json.dumps([value.body.decode(), value.url, value.key], ensure_ascii=False).encode()

    def deserialize(self, version: int, data: bytes) -> HttpRecord:
        self.check_version(version)
        try:
            body, url, key = parse_json(data)
            return HttpRecord(body.encode(), url, key)
        except (ValueError, TypeError, AttributeError) as error:
            raise SerializationError("a stored record is damaged", why=type(error).__name__) from error


_TYPES: dict[Shape, str] = {"ndjson": "application/x-ndjson"}


class BodyMaker:
    """Combines records to bodies, in the format and compression of the options.

    Equal records give equal bytes on every host.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._codec = options.compression
        self._shape = options.body
        name = json.dumps(options.wrap_key, ensure_ascii=False).encode()
        start, end = {"wrapped": (b"{" + name + b":[", b"]}"), "array": (b"[", b"]")}.get(options.body, (b"", b""))
        self._start, self._end = start, end
        self.content_type = options.content_type or _TYPES.get(options.body, "application/json")

    def make(self, records: Sequence[bytes]) -> bytes:
        """Return the body for records, each a JSON object in UTF-8.

        Raises `ValueError` if the format allows one record, and there are more.
        """
        return self._compressed(self._joined(records))

    def _joined(self, records: Sequence[bytes]) -> bytes:
        if self._shape == "record":
            (record,) = records
            return record
        if self._shape == "ndjson":
            return b"\n".join(records) + b"\n"
        return self._start + b",".join(records) + self._end

    def _compressed(self, body: bytes) -> bytes:
        if self._codec == "none":
            return body
        (buffer,) = member(self._codec, [pa.py_buffer(body)])
        return bytes(buffer)


LONGEST_KEY = 255
"""Maximum number of characters. Receivers store keys in columns of about this width."""


def fresh_key() -> str:
    """Return a new key: a random UUID, as the draft recommends (§2.2)."""
    return str(uuid.uuid4())


def user_key(text: str, column: str) -> str:
    """Create a key from a user's value: printable ASCII is unchanged, all else and `%` is percent-encoded UTF-8.

    Different values give different keys. Raises `ValueRefusedError` if the key is too long.
    """
    key = "".join(
        character if " " <= character <= "~" and character != "%" else _encoded(character) for character in text
    )
    if len(key) > LONGEST_KEY:
        raise ValueRefusedError(
            f"column {column!r} has a value that gives an idempotency key of {len(key)} characters",
            why=f"the maximum is {LONGEST_KEY}",
            do="use a shorter column, or a hash of this one",
        )
    return key


def header_value(key: str) -> str:
    """Return the header's value: a string of structured fields (RFC 8941 §3.3.3), in quotes."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ContentKeys:
    """Identifies each record of a task by its content: the n-th of equal records has the n-th key.

    The key is a digest of (incarnation, step, epoch, method, url, body, n). Equal records are interchangeable, so it
    does not matter which one is the n-th. All equal records of an epoch must reach the same task, otherwise two would
    be the first; the sink routes them accordingly. A replay of the epoch then creates the same keys in any split and
    order. Another epoch or another checkpoint creates none of them.

    Memory: about 150 bytes per distinct record of the task.
    """

    def __init__(self, context: WriterInitContext, method: str) -> None:
        self._start = hashlib.blake2b(digest_size=16, person=b"outfall.http")
        for text in (context.incarnation, context.step_id, str(context.epoch), method):
            self._start.update(_sized(text.encode()))
        self._seen: dict[bytes, int] = {}

    def key(self, url: str, body: bytes) -> str:
        """Return the key of the next record with this content."""
        digest = self._start.copy()
        digest.update(_sized(url.encode()))
        digest.update(_sized(body))
        said = digest.digest()
        n = self._seen.get(said, 0)
        self._seen[said] = n + 1
        return f"{said.hex()}-{n}"


def _sized(data: bytes) -> bytes:
    """Prefixed by its length, so that different lists of fields give different bytes."""
    return len(data).to_bytes(8, "big") + data


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


_COLUMN = "__outfall_content"


def by_content(df: DataFrame) -> DataFrame:
    """Repartition so that equal rows reach the same task: by a hash of all columns, computed by Spark in the JVM.

    Records with equal JSON come from equal rows, because JSON contains all columns. Spark gives equal values equal
    hashes. Maps, which Spark does not hash, are hashed as JSON. Spark determines the number of partitions
    (`spark.sql.shuffle.partitions`), which may change between runs.
    """
    values = ", ".join(_value(field) for field in df.schema.fields)
    hashed = df.selectExpr("*", f"xxhash64({values}) AS {_COLUMN}")
    return hashed.repartition(_COLUMN).drop(_COLUMN)


def _value(field: Any) -> str:
    name = "`" + field.name.replace("`", "``") + "`"
    return f"to_json({name})" if "map<" in field.dataType.simpleString() else name
