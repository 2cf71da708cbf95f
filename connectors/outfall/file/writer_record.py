"""Who may write a part: the records of its last writer and of the step's last driver, and what they refuse."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from outfall.capabilities import SealContext, TargetContext, WriterId, WriterInitContext
from outfall.errors import StaleWriterError
from outfall.target_record import TargetRecord

_host = cache(socket.gethostname)

_NOBODY = -1
"""Epoch and attempt of a record that is no attempt's."""


@dataclass(frozen=True)
class WriterRecord:
    """The last writer of a part; or a driver, and whether all parts are closed to its generation and older ones."""

    incarnation: str
    writer: WriterId
    sealed: bool = False
    token: str | None = None
    """The token of the generation's BEGIN; `None` where a release before tokens wrote the record."""
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
                "token": self.token,
                "host": self.host,
                "pid": self.pid,
            }
        )

    @classmethod
    def parse(cls, line: bytes | str | None) -> WriterRecord | None:
        """Read a line; `None` for none and for one that cannot be read."""
        try:
            return cls._of(json.loads(line or ""))
        except ValueError:
            return None

    @classmethod
    def parse_all(cls, lines: Sequence[bytes]) -> list[WriterRecord | None]:
        """Read many lines, at once if none of them is damaged."""
        try:
            found = json.loads(b"[" + b",".join(line or b"null" for line in lines) + b"]")
        except ValueError:
            found = []
        if len(found) != len(lines):
            return [cls.parse(line) for line in lines]
        return [cls._of(each) for each in found]

    @classmethod
    def _of(cls, found: Any) -> WriterRecord | None:
        try:
            writer = WriterId(int(found["generation"]), int(found["epoch"]), int(found["attempt"]))
            token = None if found.get("token") is None else str(found["token"])
            host, pid = str(found["host"]), int(found["pid"])
            return cls(str(found["incarnation"]), writer, bool(found["sealed"]), token, host, pid)
        except (AttributeError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of(cls, context: WriterInitContext) -> WriterRecord:
        """Make the record of an attempt."""
        writer = WriterId(context.generation, context.epoch, context.attempt)
        return cls(context.incarnation, writer, token=context.token)

    @classmethod
    def sealed_by(cls, context: SealContext) -> WriterRecord:
        """Make the record that closes all parts to a generation and older ones."""
        writer = WriterId(context.generation, context.epoch, _NOBODY)
        return cls(context.incarnation, writer, sealed=True, token=context.token)

    @classmethod
    def taken_by(cls, context: TargetContext[Any]) -> WriterRecord:
        """Make the record that takes all parts over for a generation: every attempt of it may follow."""
        return cls(context.incarnation, WriterId(context.generation, _NOBODY, _NOBODY), token=context.token)

    @property
    def begun(self) -> TargetRecord:
        """Under which BEGIN the record was made."""
        return TargetRecord(self.writer.generation, self.token)

    def is_of_the_begin_of(self, other: WriterRecord) -> bool:
        """Whether both were made under one BEGIN."""
        return (self.incarnation, self.begun) == (other.incarnation, other.begun)

    def __str__(self) -> str:
        who = self.writer
        names = [f"generation {who.generation}"]
        if who.epoch != _NOBODY:
            names.append(f"epoch {who.epoch}")
        if who.attempt != _NOBODY:
            names.append(f"attempt {who.attempt}")
        did = "sealed" if self.sealed else "taken over" if who.attempt == _NOBODY else "written"
        return f"{did} by {', '.join(names)} of incarnation {self.incarnation} (host {self.host}, pid {self.pid})"


def refuse_unopened(step: WriterRecord | None, mine: WriterRecord, part: str) -> None:
    """Refuse to write under a BEGIN whose driver did not open the parts last, or has sealed them.

    Raises:
        StaleWriterError: naming who did.
    """
    if step is None or step.sealed or not step.is_of_the_begin_of(mine):
        raise stale(step, mine, part)


def refuse_stale(found: WriterRecord | None, mine: WriterRecord, part: str) -> None:
    """Refuse to open a part that a newer writer has.

    Raises:
        StaleWriterError: naming both writers.
    """
    if found is None:
        return
    if found.incarnation != mine.incarnation or found.writer > mine.writer:
        raise stale(found, mine, part)


def stale(found: WriterRecord | None, mine: WriterRecord, part: str | None) -> StaleWriterError:
    """Make the error of a writer that has lost its part."""
    foreign = found is not None and found.incarnation != mine.incarnation
    copied = found is not None and found.begun != mine.begun and found.writer.generation == mine.writer.generation
    return StaleWriterError(
        f"this attempt may no longer write: the part is {found or 'without a record of its writer'}",
        epoch=mine.writer.epoch,
        part=part,
        why=f"this attempt is generation {mine.writer.generation}, attempt {mine.writer.attempt}"
        f" of incarnation {mine.incarnation}"
        + ("; the recovery data was copied, and the query runs on both copies" if copied and not foreign else ""),
        do="stop one of the two queries that write here, or give each a path of its own"
        if foreign
        else "stop the query that runs on the copy"
        if copied
        else "nothing, if a newer attempt or a restarted query goes on; otherwise restart the query",
    )
