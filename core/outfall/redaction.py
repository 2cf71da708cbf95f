"""Removes secrets from texts: known ones in any encoding, and texts that look like credentials."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from outfall.first_contact import causes_of
from outfall.urls import MASK, masked

_SHORTEST = 4
"""Bytes. Shorter secrets are searched only in plain form, because their encoded forms occur in too many words."""
_CUT = 8
"""Bytes of a secret that identify it where a text is truncated within it."""
_LAYERS = 3
"""The maximum number of nested encodings, such as a percent-encoded value in JSON in HTML."""


class Redaction:
    """Removes secrets from texts, in any encoding, and also if the text is truncated within one.

    Finds plain, percent-encoded, JSON-escaped, HTML-escaped, quoted-printable, Base64 and hexadecimal forms, and nested
    combinations of them. Empty strings among the secrets are ignored.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = _all_needles(secrets)

    def hide(self, text: str, more: Iterable[str] = ()) -> str:
        """Return the text with `***` in place of each secret, and of each one in `more`."""
        needles = self._needles | _all_needles(more)
        spans = sorted(span for view in _views(text) for span in _found(view, needles)) if needles else []
        pieces: list[str] = []
        at = 0
        for start, end in spans:
            if start >= at:
                pieces += [text[at:start], MASK]
            at = max(at, end)
        return "".join([*pieces, text[at:]])

    def clean(self, error: BaseException) -> None:
        """Remove the secrets from the texts of an exception and of its causes, in case a server has repeated one."""
        for cause in causes_of(error):
            cause.args = tuple(self.hide(said) if isinstance(said, str) else said for said in cause.args)


class _Needle(NamedTuple):
    content: bytes
    inner: bool
    """Whether the encoding may continue around it: in Base64, a character is shared with the neighbors."""


class _View(NamedTuple):
    """A decoded text: its bytes, and the characters of the original text for each of them."""

    content: bytes
    spans: list[tuple[int, int]]


def _all_needles(secrets: Iterable[str]) -> frozenset[_Needle]:
    return frozenset(needle for secret in secrets if secret for needle in _needles(secret))


@lru_cache(maxsize=256)
def _needles(secret: str) -> tuple[_Needle, ...]:
    plain = {_bytes(secret)} | ({secret.encode("latin-1")} if max(secret) < "\u0100" else set())
    found = {_Needle(content, False) for content in plain}
    for content in plain:
        if len(content) >= _SHORTEST:
            found |= {_Needle(content.hex().encode(), False), _Needle(content.hex().upper().encode(), False)}
            found |= {_Needle(core, True) for core in _in_base64(content)}
    return tuple(found)


def _in_base64(content: bytes) -> Iterator[bytes]:
    """Yield the part of the Base64 text that is independent of its neighbors, in both alphabets."""
    for shift, first in enumerate((0, 2, 3)):
        last = (shift + len(content)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * shift + content)[first:last]


def _found(view: _View, needles: Iterable[_Needle]) -> Iterator[tuple[int, int]]:
    content, spans = view
    end = _BROKEN_OFF.search(content).start()  # type: ignore[union-attr] # it matches the empty text too
    for needle, inner in needles:
        at = content.find(needle)
        while at >= 0:
            start, stop = at, at + len(needle)
            if inner:
                start -= bool(_BASE64.match(content, at - 1)) if at else 0
                stop = _REST.match(content, stop).end()  # type: ignore[union-attr] # likewise
            yield spans[start][0], spans[stop - 1][1]
            at = content.find(needle, at + 1)
        at = content.rfind(needle[:_CUT], 0, end) if len(needle) > _CUT else -1
        if at >= 0 and needle.startswith(content[at:end]):
            yield spans[at][0], spans[-1][1]


_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]")
_REST = re.compile(rb"[A-Za-z0-9+/_-]?={0,2}")
_BROKEN_OFF = re.compile(rb"(?:%[0-9A-Fa-f]?|\\(?:u[0-9A-Fa-f]{0,3})?|&[#A-Za-z0-9]{0,7}|=[0-9A-Fa-f]?)?\Z")
"""An incomplete escape at the end of a text."""


def _views(text: str) -> Iterator[_View]:
    """Yield the text itself, and each chain of decodings of it."""
    spans = [(at, at + 1) for at, character in enumerate(text) for _ in _bytes(character)]
    layer = [_View(_bytes(text), spans)]
    seen = {layer[0].content}
    for _ in range(_LAYERS + 1):
        yield from layer
        decoded = [_decoded(view, *decoding) for view in layer for decoding in _DECODINGS]
        layer = []
        for view in decoded:
            if view.content not in seen:
                seen.add(view.content)
                layer.append(view)


def _decoded(view: _View, pattern: re.Pattern[bytes], plain: Callable[[re.Match[bytes]], bytes]) -> _View:
    content = bytearray()
    spans: list[tuple[int, int]] = []
    at = 0
    for found in pattern.finditer(view.content):
        content += view.content[at : found.start()]
        spans += view.spans[at : found.start()]
        said = plain(found)
        content += said
        spans += [(view.spans[found.start()][0], view.spans[found.end() - 1][1])] * len(said)
        at = found.end()
    return _View(bytes(content + view.content[at:]), spans + view.spans[at:])


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hexadecimal(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode()) if found[1] else b""


def _unescaped(found: re.Match[bytes]) -> bytes:
    """Decode a backslash escape of JSON or Python."""
    if found[1]:
        units = bytes.fromhex(found[0].replace(b"\\u", b"").decode())
        return _bytes(units.decode("utf-16-be", "surrogatepass"))
    return bytes.fromhex(found[2].decode()) if found[2] else _CONTROLS.get(found[3], found[3])


def _entity(found: re.Match[bytes]) -> bytes:
    return _bytes(html.unescape(found[0].decode()))


_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_DECODINGS: tuple[tuple[re.Pattern[bytes], Callable[[re.Match[bytes]], bytes]], ...] = (
    (re.compile(rb"%([0-9A-Fa-f]{2})"), _hexadecimal),
    (re.compile(rb"=([0-9A-Fa-f]{2})|=\r?\n"), _hexadecimal),
    (re.compile(rb"((?:\\u[0-9A-Fa-f]{4})+)|\\x([0-9A-Fa-f]{2})|\\([\"'\\/nrtbf])"), _unescaped),
    (re.compile(rb"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});"), _entity),
    (re.compile(rb"\+"), lambda found: b" "),
    (re.compile(rb"\r?\n[ \t]*"), lambda found: b""),
)

# Lengths are limited, because the search would otherwise start at each letter of a long word.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}://[^\s\"'<>\\]+")
_WORD = re.compile(r"\S+")
_PASSWORD = re.compile(r"(\b[a-z_.]{0,40}pass(?:word|wd|phrase)\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Mask user, password, query and fragment of every URL in a text, and the value after `password=`.

    Masks too much rather than too little: all text of a word up to its last `@` is treated as credentials.
    """
    text = _WORD.sub(lambda found: _without_user(found[0]), text)
    return _PASSWORD.sub(rf"\1{MASK}", _URL.sub(lambda found: masked(found[0]), text))


def _without_user(word: str) -> str:
    # By the last @, because a password may contain characters that end a URL: a quote, a slash, an @.
    scheme, _, rest = word.partition("://")
    _, at, place = rest.rpartition("@")
    return f"{scheme}://{MASK}@{place}" if at else word


def all_without_credentials(value: Any) -> Any:
    """Mask all strings of a JSON value except the keys of objects."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: all_without_credentials(item) for key, item in value.items()}
    return [all_without_credentials(item) for item in value] if isinstance(value, list) else value
