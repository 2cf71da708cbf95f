"""Arrow batches as records that are ready to be sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa

from outfall.errors import SerializationError
from outfall.formats import Encoder, FormatOptions, encoder
from outfall.http.columns import texts
from outfall.http.keys import ContentKeys, user_key
from outfall.http.options import HttpOptions
from outfall.http.templates import UrlTemplate
from outfall.serde import SimpleVersionedSerializer


class Record(NamedTuple):
    """One row: a JSON object in UTF-8, its URL, and its own idempotency key where it has one."""

    body: bytes
    url: str
    key: str | None = None


class RecordMaker:
    """Turns batches into records, a column at a time; the bytes of each are a piece of one buffer.

    Args:
        options: url and keys.
        content: makes the keys where the record's content does.
    """

    def __init__(self, options: HttpOptions, content: ContentKeys | None = None) -> None:
        self._template = UrlTemplate(options.url)
        self._column = options.key_column if options.idempotency == "row" else None
        self._item = options.key_column if options.idempotency == "item" else None
        self._content = content
        self._format = FormatOptions(format="jsonl", ignore_null_fields=options.ignore_null_fields)
        self._encoder: Encoder | None = None

    def make(self, batch: pa.RecordBatch) -> list[Record]:
        """Return the batch's rows in their order.

        Raises:
            ValueRefusedError: a value cannot be written as JSON, or as part of a url, or as a key.
        """
        if self._encoder is None or not self._encoder.schema.equals(batch.schema):
            self._encoder = encoder(self._format, batch.schema)
        # JSON escapes line breaks, so each one ends a record.
        bodies = self._encoder.encode(batch).to_pybytes().split(b"\n")
        bodies.pop()
        urls = self._template.expand(batch) or repeat(self._template.url)
        if self._item is not None:
            texts(batch, self._item, "the name of an item")
        return list(map(Record, bodies, urls, self._keys(batch, bodies, urls)))

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


class RecordSerializer(SimpleVersionedSerializer[Record]):
    """JSON: body and url as text, and the key."""

    @property
    def version(self) -> int:
        return 1

    def serialize(self, value: Record) -> bytes:
        return json.dumps([value.body.decode(), value.url, value.key], ensure_ascii=False).encode()

    def deserialize(self, version: int, data: bytes) -> Record:
        self.check_version(version)
        try:
            body, url, key = json.loads(data)
            return Record(body.encode(), url, key)
        except (ValueError, TypeError, AttributeError) as error:
            raise SerializationError("a stored record is damaged", why=type(error).__name__) from error
