"""The common kind of answer, read from what has come so far (RFC 9112): a length is given, and no encoding."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outfall.http.transport import Answer

LONGEST_HEAD = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.([01]) ([2-5]\d\d)(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_NO_BODY = (204, 304)


@dataclass(frozen=True)
class Read:
    """A whole answer, and whether its connection can carry another request."""

    answer: Answer
    again: bool


class Unusual(Exception):  # noqa: N818 - not an error: another reader understands it
    """The answer is of another kind, or broken: it is for `http.client` to read."""


class ResponseReader:
    """Collects one answer.

    Args:
        longest: how much of the body is kept.
    """

    def __init__(self, longest: int) -> None:
        self.data = bytearray()
        """What has come."""
        self._longest = longest
        self._body_at = -1
        self._length = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._keeps = False

    def take(self, data: bytes) -> Read | None:
        """Add what has come.

        Returns:
            The answer when it is whole, or as much of it as is kept.

        Raises:
            Unusual: see there.
        """
        self.data += data
        if self._body_at < 0 and not self._take_head():
            return None
        have = len(self.data) - self._body_at
        if have < self._length and have <= self._longest:
            return None
        whole = self._length <= self._longest
        body = bytes(self.data[self._body_at : self._body_at + min(self._length, self._longest)])
        again = self._keeps and whole and have == self._length
        return Read(Answer(self._status, self._headers, body, whole), again)

    def _take_head(self) -> bool:
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            if len(self.data) > LONGEST_HEAD:
                raise Unusual
            return False
        first, *lines = bytes(self.data[:end]).split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if status is None:
            raise Unusual
        headers: dict[str, str] = {}
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise Unusual
            name, value = field[1].decode("ascii").lower(), field[2].decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self._status = int(status[2])
        length = "0" if self._status in _NO_BODY else headers.get("content-length", "")
        if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
            raise Unusual
        self._length = int(length)
        self._headers = headers
        connection = headers.get("connection", "").lower()
        self._keeps = status[1] == b"1" and "close" not in connection
        self._body_at = end + 4
        return True
