"""Dead letters in files of `FileSink` and `S3Sink`: JSON lines, CSV and Parquet, at any depth."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from outfall.dead_letter import DEAD_LETTER_SCHEMA
from outfall.errors import ConfigurationError, TransientError
from outfall.filesystems import ExplainedClient, open_filesystem
from outfall.location import LOCAL, REMOTE, Location, Purpose
from outfall.replay.dead_letters import FoundDeadLetter, dead_letter_of
from outfall.serde import parse_json

_PLACES = Purpose(
    "location of dead letters",
    REMOTE,
    "dead letters are read from files, postgresql:, mysql: and kafka:",
    f"give a path, or a URL: {', '.join(f'{scheme}://' for scheme in REMOTE)}, postgresql://, mysql:// or kafka://",
)
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_NOTHING = {field.name: None if field.nullable else "" for field in DEAD_LETTER_SCHEMA}
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class FileDeadLetters:
    """Reads the dead letters in a file, or in all files of a directory except hidden (staged) files.

    The location is an absolute path, or a URL of an object store or of HDFS. Raises `ConfigurationError` if it is
    invalid, and `ImportError` if the package for its filesystem is missing.
    """

    def __init__(self, location: str) -> None:
        place = Location.parse(location, _PLACES)
        if place.scheme == LOCAL:
            self._filesystem, self._root = LocalFileSystem(), place.path
        else:
            opened, self._root = open_filesystem(place, "reading dead letters from")
            self._filesystem = ExplainedClient(opened, place.scheme)
        self._shown = place.url()

    def __call__(self) -> Iterator[FoundDeadLetter]:
        """Yield the dead letters, file by file in name order.

        Raises `ConfigurationError` if the location does not exist or contains other data, and `TransientError` if a
        file cannot be read.
        """
        try:
            paths = self._paths()
        except FileNotFoundError:
            raise ConfigurationError(f"{self._shown} does not exist", do="correct the path") from None
        for path in paths:
            try:
                yield from self._dead_letters(path)
            except (OSError, pa.ArrowException, UnicodeError) as error:
                raise TransientError(f"the dead letters in {path} cannot be read", why=str(error)) from error

    def _paths(self) -> list[str]:
        if self._filesystem.isfile(self._root):
            return [self._root]
        if not self._filesystem.isdir(self._root):
            raise FileNotFoundError(self._root)
        found = self._filesystem.find(self._root)
        start = len(self._root.rstrip("/")) + 1
        # Spark's readers skip the same names.
        return sorted(path for path in found if not any(name[:1] in "_." for name in path[start:].split("/")))

    def _dead_letters(self, path: str) -> Iterator[FoundDeadLetter]:
        stem, end = posixpath.splitext(path)
        compression = _COMPRESSIONS.get(end)
        kind = posixpath.splitext(stem)[1] if compression else end
        readers = {".jsonl": self._json, ".json": self._json, ".csv": self._csv}
        if kind != ".parquet" and kind not in readers:
            raise ConfigurationError(
                f"the format of {path} is unknown",
                do="give files that end in .jsonl, .csv or .parquet",
            )
        levels = _levels(path[len(self._root) :])
        with self._filesystem.open(path, "rb") as file:
            if kind == ".parquet":
                records = _parquet(file, path)
            else:
                stream = pa.CompressedInputStream(pa.PythonFile(file), compression) if compression else file
                records = readers[kind](io.BufferedReader(stream) if compression else file, path)
            for values, place in records:
                yield dead_letter_of(levels | values, place)

    def _json(self, lines: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
        for place, line in _lines(lines, path):
            try:
                values = parse_json(line)
            except ValueError as error:
                raise ConfigurationError(f"{place} is not valid JSON", why=str(error)) from None
            if not isinstance(values, dict):
                raise ConfigurationError(f"{place} is not a dead letter", why="it is not a JSON object")
            yield values, place

    def _csv(self, lines: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
        names = DEAD_LETTER_SCHEMA.names
        for place, line in _lines(lines, path):
            fields = _csv_fields(line)
            if set(fields) <= set(names) and "row" in fields:
                names = [field or "" for field in fields]  # a header
            elif len(fields) != len(names):
                raise ConfigurationError(f"{place} is not a dead letter", why=f"it has {len(fields)} fields")
            else:
                # CSV does not distinguish NULL from an empty string.
                yield {name: field or _NOTHING[name] for name, field in zip(names, fields, strict=True)}, place


def _lines(stream: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each complete line with its location. An incomplete line may still be rolled back."""
    for number, line in enumerate(stream, 1):
        if line.endswith(b"\n") and line.strip():
            yield f"{path}, line {number}", line.decode().rstrip("\r\n")


def _parquet(file: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    number = 0
    for batch in pq.ParquetFile(file).iter_batches(batch_size=5000):
        for values in batch.to_pylist():
            number += 1
            yield values, f"{path}, row {number}"


def _levels(path: str) -> dict[str, Any]:
    """Return the columns in directory names (`step=flights`), which the files do not contain."""
    levels: dict[str, Any] = {}
    for level in path.split("/")[:-1]:
        name, sign, value = level.partition("=")
        if sign and name in DEAD_LETTER_SCHEMA.names:
            levels[name] = None if value == _NO_VALUE else unquote(value)
    return levels


def _csv_fields(line: str) -> list[str | None]:
    """Split a line in `FileSink`'s default format: a backslash escapes only within quotes, an empty field is NULL."""
    fields: list[str | None] = []
    at = 0
    while at <= len(line):
        if line[at : at + 1] != '"':
            end = line.find(",", at)
            end = len(line) if end < 0 else end
            fields.append(line[at:end] or None)
            at = end + 1
            continue
        text, at = [], at + 1
        while at < len(line) and line[at] != '"':
            at += line[at] == "\\"
            text.append(line[at : at + 1])
            at += 1
        fields.append("".join(text))
        at += 2
    return fields
