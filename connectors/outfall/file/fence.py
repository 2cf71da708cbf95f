"""Who may write a part: the last writer's record in the part's lock file.

The record is not synced. It stops processes that live, and a power loss leaves none; what a torn record loses, the log
knows, so a record that cannot be read counts as absent.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from functools import cache

from outfall.capabilities import WriterId
from outfall.errors import StaleWriterError

_host = cache(socket.gethostname)


@dataclass(frozen=True)
class WriterRecord:
    """The last writer of a part, and whether the part is closed to its generation and older ones."""

    incarnation: str
    writer: WriterId
    sealed: bool = False
    host: str = field(default_factory=_host)
    pid: int = field(default_factory=os.getpid)

    def line(self) -> str:
        """Return the record as a line of JSON."""
        writer = self.writer
        return json.dumps(
            {
                "incarnation": self.incarnation,
                "generation": writer.generation,
                "epoch": writer.epoch,
                "attempt": writer.attempt,
                "sealed": self.sealed,
                "host": self.host,
                "pid": self.pid,
            }
        )

    @classmethod
    def parse(cls, line: str | None) -> WriterRecord | None:
        """Read a line; `None` for none and for one that cannot be read."""
        try:
            found = json.loads(line or "")
            writer = WriterId(int(found["generation"]), int(found["epoch"]), int(found["attempt"]))
            return cls(str(found["incarnation"]), writer, bool(found["sealed"]), str(found["host"]), int(found["pid"]))
        except (ValueError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        who = self.writer
        state = "sealed by" if self.sealed else "written by"
        return (
            f"{state} generation {who.generation}, epoch {who.epoch}, attempt {who.attempt} of incarnation"
            f" {self.incarnation} (host {self.host}, pid {self.pid})"
        )


def claim(incarnation: str, generation: int) -> WriterRecord:
    """Make the record that takes a part over for a generation: every attempt of it may follow."""
    return WriterRecord(incarnation, WriterId(generation, -1, -1))


def refuse_stale(found: WriterRecord | None, mine: WriterRecord, part: str) -> None:
    """Refuse to open a part that a newer writer has, or that is sealed against this one.

    A seal stops its own generation and older ones. A newer generation may write the same epoch again: the driver may
    have died between sealing and recording.

    Raises:
        StaleWriterError: naming both writers.
    """
    if found is None:
        return
    foreign = found.incarnation != mine.incarnation
    closed = found.sealed and mine.writer.generation <= found.writer.generation
    if foreign or closed or found.writer > mine.writer:
        raise stale(found, mine, part)


def stale(found: WriterRecord | None, mine: WriterRecord, part: str) -> StaleWriterError:
    """Make the error of a writer that has lost its part."""
    foreign = found is not None and found.incarnation != mine.incarnation
    return StaleWriterError(
        f"this attempt may no longer write: the part is {found or 'without a record of its writer'}",
        epoch=mine.writer.epoch,
        part=part,
        why=f"this attempt is generation {mine.writer.generation}, attempt {mine.writer.attempt}"
        f" of incarnation {mine.incarnation}",
        do="stop one of the two queries that write here, or give each a path of its own"
        if foreign
        else "nothing, if a newer attempt or a restarted query goes on; otherwise restart the query",
    )
