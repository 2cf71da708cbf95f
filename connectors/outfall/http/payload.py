"""What a request carries: records as JSON, alone or together."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from outfall.formats import member
from outfall.http.options import HttpOptions, Shape

_TYPES: dict[Shape, str] = {"ndjson": "application/x-ndjson"}


class BodyMaker:
    """Puts records together. Equal records make equal bytes, on every host.

    Args:
        options: shape and compression.
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

        Raises:
            ValueError: the shape takes one record, and there are more.
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
