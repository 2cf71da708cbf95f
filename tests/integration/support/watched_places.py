"""Where lives of a driver write to, as a reader sees it that knows nothing of the sinks."""

from __future__ import annotations

import json
import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg

from outfall.file import FileSink
from tests.integration.postgres.support import Target as TableTarget
from tests.integration.s3.support import Target as BucketTarget
from tests.integration.support.lives import COUNTS, Row
from tests.integration.support.reading import visible

Outage = Callable[[random.Random], AbstractContextManager[None]]


class Place(ABC):
    """A target and the sink that writes there. What a reader may see is what the sink's page promises."""

    sink: Any
    repeatable = False
    """Whether the sink needs a source that brings the same rows again."""
    holds_rows = False
    """Whether completed epochs may wait in the recovery data, until there are more or a drain comes."""
    takes_back = False
    """Whether readers may see rows that are taken back."""
    changeable = False
    """Whether others may change the target so that an epoch that is written does not fit any more."""
    notes_empty_epochs = True
    """Whether an epoch without rows is noted in the target, too: only then it is refused to a copy of the log."""
    zombies_leave = False
    """Whether what tasks write that wake after the clean-up is removed by `outfall gc` alone."""
    counts: Sequence[int] = COUNTS
    """How many rows an epoch may have."""
    log = ""
    """Where the recovery data is, if it is not beside the query."""
    pause = 0.02
    """Seconds between two looks."""
    outage: Outage | None = None
    """What makes its server unreachable for a while, where anything can."""
    meddle: Callable[[], str] | None = None
    """What other writers do to the target meanwhile, where there may be others; returns what it was."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return the rows that a reader sees now."""

    def whole_rows(self) -> list[Row]:
        """Return what a reader sees, if it sees all rows of one epoch and part or none of them."""
        return []

    def views(self) -> Iterator[list[Row]]:
        """Yield what readers see in which no epoch is seen in part."""
        yield self.whole_rows()

    def part(self, number: int) -> int:
        """Return the part that the row of this number belongs to, where parts are seen as a whole."""
        return 0

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Return what lost attempts left, when nobody writes any more."""

    def close(self) -> None:
        """End the reader's connection."""


class Files(Place):
    """A directory."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self._directory = directory
        self.sink = FileSink(directory, **options)
        self.takes_back = "parts" in options

    def rows(self) -> list[Row]:
        return [row for path in visible(self._directory) for row in self._rows_of(path)]

    def _rows_of(self, path: Path) -> list[Row]:
        try:
            *lines, rest = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            assert self.takes_back, f"{path} is gone"
            return []
        assert self.takes_back or not rest, f"{path} ends within a line"
        return [row_of(line) for line in lines]

    def leftovers(self) -> list[str]:
        return [path.name for path in (self._directory / "_outfall" / "staging").glob("*")]


class Table(Place):
    """A table of PostgreSQL."""

    def __init__(self, dsn: str, *, key: str = "", **options: Any) -> None:
        columns = "epoch integer, life integer, n integer"
        if "part_column" in options:
            columns += ', "p" integer, "o" bigint'
        self._target = TableTarget(dsn, f"CREATE TABLE t ({columns}{key})")
        self.sink = self._target.sink(**options)
        self._parts: int | None = options.get("parts")
        self._by_epoch = not options
        self.repeatable = not self._by_epoch
        self._connection = psycopg.connect(dsn, autocommit=True)

    def rows(self) -> list[Row]:
        return self._connection.execute("SELECT epoch, life, n FROM t").fetchall()

    def whole_rows(self) -> list[Row]:
        return self.rows() if self._by_epoch or self._parts else []

    def part(self, number: int) -> int:
        return zlib.crc32(b"%d" % number) % self._parts if self._parts else 0

    def leftovers(self) -> list[str]:
        if not self._by_epoch:
            return []
        left = {"attempts": self._target.attempts(), "staged rows": self._target.staged()}
        return [f"{count} {what}" for what, count in left.items() if count]

    def close(self) -> None:
        self._connection.close()


class Objects(Place):
    """A prefix in a bucket."""

    pause = 0.3

    def __init__(self, target: BucketTarget, **options: Any) -> None:
        self._target = target
        self.sink = target.sink(**options)
        self.holds_rows = any(name.startswith("roll_") for name in options)
        self._read: dict[tuple[str, str], bytes] = {}
        """By key and ETag; an ETag is of one content."""

    def rows(self) -> list[Row]:
        return [row for rows in self._objects().values() for row in rows]

    def whole_rows(self) -> list[Row]:
        """Those of readers who take the keys from manifests."""
        named = self._named()
        objects = self._objects()
        assert named <= objects.keys(), f"manifests name objects that are not there: {named - objects.keys()}"
        return [] if self.holds_rows else [row for key in named for row in objects[key]]

    def leftovers(self) -> list[str]:
        unnamed = [f"{key} stands in no manifest" for key in self._objects().keys() - self._named()]
        uploads = [f"an upload of {upload['Key']}" for upload in self._target.uploads()]
        return [*unnamed, *uploads, *self._listed(f"{self._target.root}_outfall/pieces/")]

    def _objects(self) -> dict[str, list[Row]]:
        """The rows of each object that a reader sees."""
        sidecar = f"{self._target.root}_outfall/"
        listed = self._listed(self._target.root)
        return {
            key: [row_of(line) for line in self._get(key, etag).splitlines()]
            for key, etag in listed.items()
            if not key.startswith(sidecar)
        }

    def _named(self) -> set[str]:
        """The keys that stand in manifests."""
        manifests = self._listed(f"{self._target.root}_outfall/manifests/")
        read = [json.loads(self._get(key, etag)) for key, etag in manifests.items()]
        return {entry["key"] for manifest in read for entry in manifest["objects"]}

    def _listed(self, prefix: str) -> dict[str, str]:
        pages = self._target.client.get_paginator("list_objects_v2").paginate(Bucket=self._target.bucket, Prefix=prefix)
        return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", [])}

    def _get(self, key: str, etag: str) -> bytes:
        if (key, etag) not in self._read:
            body = self._target.client.get_object(Bucket=self._target.bucket, Key=key)["Body"]
            self._read[key, etag] = body.read()
        return self._read[key, etag]


def row_of(line: bytes) -> Row:
    """Return the row that a line or a value holds."""
    row = json.loads(line)
    return row["epoch"], row["life"], row["n"]
