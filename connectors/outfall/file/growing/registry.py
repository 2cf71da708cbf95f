"""The register of part writers: one file, which is also the lock between the driver and all writers.

```
line 0      the last driver that took over or sealed the parts of the step
line 1      the last process that held the register exclusively
line 2 + i  the last writer of part i
```
A writer locks the lock file of its part, which excludes other attempts at the part. Then it locks the register in
shared mode, for one check and one write. A driver that takes over, seals or truncates locks only the register,
exclusively, so no writer is between a check and a write at that time. A process that holds the register waits for no
other lock, so there is no deadlock.

Each driver writes line 0 with the token of its BEGIN before its tasks start, and syncs it. If two copies of a log are
in use at once, the second driver is rejected. Nothing else is synced, because the other lines only stop running
processes, and a power loss leaves none. A line that cannot be read counts as absent, because the log has the same
information. Only a writer or a seal requires the line of its driver.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Self

from pydantic import ValidationError

from outfall.capabilities import SealContext, TargetContext, WriterId, WriterInitContext
from outfall.errors import StaleWriterError
from outfall.file.growing.part_files import FileState, part_index, part_name
from outfall.file.stores.local import LocalStore
from outfall.file.stores.locks import LINE, is_locked, line_of, locked, peek, read_line, write_line
from outfall.serde import parse_json
from outfall.storage.names import SIDECAR
from outfall.target_record import TargetRecord

_host = cache(socket.gethostname)

_REGISTER = re.compile(r"parts(\..+)\.lock")

_NOBODY = -1
"""Epoch and attempt of a record that does not belong to an attempt."""


@dataclass(frozen=True)
class RegisterEntry:
    """The last writer of a part; or a driver, and whether it closed all parts to its own and older generations."""

    incarnation: str
    writer: WriterId
    sealed: bool = False
    token: str | None = None
    """The token of the generation's BEGIN; `None` in records of releases before tokens."""
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
    def parse(cls, line: bytes | str | None) -> RegisterEntry | None:
        """Parse a line; `None` if it is missing or cannot be read."""
        try:
            return cls._of(parse_json(line or ""))
        except ValueError:
            return None

    @classmethod
    def parse_all(cls, lines: Sequence[bytes]) -> list[RegisterEntry | None]:
        """Parse many lines, in one call if none of them is damaged."""
        try:
            found = parse_json(b"[" + b",".join(line or b"null" for line in lines) + b"]")
        except ValueError:
            found = []
        if len(found) != len(lines):
            return [cls.parse(line) for line in lines]
        return [cls._of(each) for each in found]

    @classmethod
    def _of(cls, found: Any) -> RegisterEntry | None:
        try:
            writer = WriterId(int(found["generation"]), int(found["epoch"]), int(found["attempt"]))
            token = None if found.get("token") is None else str(found["token"])
            host, pid = str(found["host"]), int(found["pid"])
            return cls(str(found["incarnation"]), writer, bool(found["sealed"]), token, host, pid)
        except (AttributeError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of(cls, context: WriterInitContext) -> RegisterEntry:
        """Return the record of an attempt."""
        writer = WriterId(context.generation, context.epoch, context.attempt)
        return cls(context.incarnation, writer, token=context.token)

    @classmethod
    def sealed_by(cls, context: SealContext) -> RegisterEntry:
        """Return the record that closes all parts to a generation and older ones."""
        writer = WriterId(context.generation, context.epoch, _NOBODY)
        return cls(context.incarnation, writer, sealed=True, token=context.token)

    @classmethod
    def taken_by(cls, context: TargetContext[Any]) -> RegisterEntry:
        """Return the record that takes over all parts for all attempts of a generation."""
        return cls(context.incarnation, WriterId(context.generation, _NOBODY, _NOBODY), token=context.token)

    @property
    def begun(self) -> TargetRecord:
        """The BEGIN under which the record was written."""
        return TargetRecord(self.writer.generation, self.token)

    def is_of_the_begin_of(self, other: RegisterEntry) -> bool:
        """Whether both were written under the same BEGIN."""
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


def stale(found: RegisterEntry | None, mine: RegisterEntry, part: str | None) -> StaleWriterError:
    """Return the error of a writer that has lost its part."""
    foreign = found is not None and found.incarnation != mine.incarnation
    copied = found is not None and found.begun != mine.begun and found.writer.generation == mine.writer.generation
    return StaleWriterError(
        f"this attempt may no longer write: the part {described(found)}",
        epoch=mine.writer.epoch,
        part=part,
        why=f"this attempt is generation {mine.writer.generation}, attempt {mine.writer.attempt}"
        f" of incarnation {mine.incarnation}"
        + ("; the recovery log was copied, and the query runs on both copies" if copied and not foreign else ""),
        do="stop one of the two queries that write here, or give each query its own path"
        if foreign
        else "stop the query that runs on the copy"
        if copied
        else "nothing, if a newer attempt or a restarted query continues; otherwise restart the query",
    )


_STEP, _ALONE, _PARTS = 0, 1, 2

_NAMED = 5
"""The number of lock holders that an error names."""


class Records:
    """The contents of the register at one moment."""

    def __init__(self, data: bytes) -> None:
        self._lines = [line_of(data[start : start + LINE]) for start in range(0, len(data), LINE)]

    @property
    def step(self) -> RegisterEntry | None:
        """The last driver that took over or sealed the parts."""
        return RegisterEntry.parse(self._line(_STEP))

    def part(self, part: str) -> RegisterEntry | None:
        """The last writer of a part."""
        return RegisterEntry.parse(self._line(_PARTS + part_index(part)))

    def writers(self) -> list[RegisterEntry | None]:
        """The last writer of each part by index, up to the last part that had a writer."""
        return RegisterEntry.parse_all(self._lines[_PARTS:])

    def __eq__(self, other: object) -> bool:
        """Whether no part was taken over between the two."""
        if not isinstance(other, Records):
            return NotImplemented
        return (self._line(_STEP), self._lines[_PARTS:]) == (other._line(_STEP), other._lines[_PARTS:])

    __hash__ = None  # type: ignore[assignment]

    def _line(self, number: int) -> bytes:
        return self._lines[number] if number < len(self._lines) else b""


@dataclass(frozen=True)
class WritablePart:
    """A part that is locked by its writer, which also holds the register in shared mode."""

    part: str
    _fd: int

    def take_over(self, mine: RegisterEntry) -> bool:
        """Check that an attempt may open the part; return whether another attempt of the same BEGIN had it before.

        The truncation by that attempt may not be durable. Raises `StaleWriterError` if a newer writer has the part,
        another BEGIN opened the parts last, or they are sealed.
        """
        self._refuse_unopened(mine)
        found = self._writer()
        if found is not None and (found.incarnation != mine.incarnation or found.writer > mine.writer):
            raise stale(found, mine, self.part)
        return found is not None and found.is_of_the_begin_of(mine)

    def enter(self, mine: RegisterEntry) -> None:
        """Make an attempt the part's writer."""
        write_line(self._fd, mine.line(), _PARTS + part_index(self.part))

    def check_still(self, mine: RegisterEntry) -> None:
        """Raise `StaleWriterError` unless an attempt is still the part's writer."""
        self._refuse_unopened(mine)
        found = self._writer()
        if found != mine:
            raise stale(found, mine, self.part)

    def _refuse_unopened(self, mine: RegisterEntry) -> None:
        """Reject a write if another BEGIN opened the parts last, or if its driver has sealed them."""
        step = RegisterEntry.parse(read_line(self._fd, _STEP))
        if step is None or step.sealed or not step.is_of_the_begin_of(mine):
            raise stale(step, mine, self.part)

    def _writer(self) -> RegisterEntry | None:
        return RegisterEntry.parse(read_line(self._fd, _PARTS + part_index(self.part)))


@dataclass(frozen=True)
class LockedRegister:
    """The register while its driver holds it exclusively."""

    _fd: int

    @cached_property
    def records(self) -> Records:
        """The contents at the time of locking."""
        return Records(_read(self._fd))

    def enter(self, driver: RegisterEntry) -> None:
        """Set the record of the step. The records of the writers are kept."""
        write_line(self._fd, driver.line(), _STEP)

    def clear(self, driver: RegisterEntry) -> None:
        """Set the record of the step, and remove all writers, including newer ones."""
        self.enter(driver)
        os.ftruncate(self._fd, _PARTS * LINE)

    def sync(self) -> None:
        """Make the record of the step durable, so that it cannot revert to an older driver."""
        os.fsync(self._fd)


@dataclass(frozen=True)
class Register:
    """The register of the parts with one suffix in one directory."""

    store: LocalStore
    suffix: str

    @classmethod
    def all_in(cls, store: LocalStore) -> list[Self]:
        """Return all registers in a directory."""
        found = map(_REGISTER.fullmatch, store.names(SIDECAR))
        return [cls(store, match[1]) for match in found if match is not None]

    @property
    def path(self) -> str:
        """The file."""
        return self._lock("parts" + self.suffix)

    @contextmanager
    def writing(self, part: str) -> Iterator[WritablePart]:
        """Hold a part for one write.

        Raises `TransientError`, which names the holder, if another attempt or a driver is stopped while it holds a
        lock, and `TargetLostError` if the directory is missing.
        """
        with (
            locked(self._lock(part), self.store.patience, holder=lambda _: self._writers([part])),
            locked(self.path, self.store.patience, shared=True, holder=_last_alone) as fd,
        ):
            yield WritablePart(part, fd)

    @contextmanager
    def alone(self) -> Iterator[LockedRegister]:
        """Lock the register exclusively, which excludes all writers. Raises the errors of `writing`."""
        with locked(self.path, self.store.patience, holder=self._holders) as fd:
            write_line(fd, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}), _ALONE)
            yield LockedRegister(fd)

    def peek(self) -> Records:
        """Read the register without its lock. Records that are being written may appear to be absent."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return Records(b"")
        try:
            return Records(_read(fd))
        finally:
            os.close(fd)

    def record_base(self, incarnation: str, part: str, base: FileState) -> None:
        """Record durably where this query begins in a part with existing data, in the part's lock file.

        The recovery log has the same information from the BEGIN that found the data, but an older copy of the log does
        not. Lock files are never removed.
        """
        fd = os.open(self._lock(part), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            write_line(fd, json.dumps({"incarnation": incarnation, "offset": base.offset, "segment": base.segment}))
            os.fsync(fd)
        finally:
            os.close(fd)
        self.store.sync([SIDECAR])

    def find_base(self, incarnation: str, part: str) -> FileState | None:
        """Return where this query began in a part; `None` if the part had no data."""
        try:
            found = parse_json(peek(self._lock(part)) or "{}")
            if found.get("incarnation") == incarnation:
                return FileState(offset=found["offset"], segment=found["segment"])
        except (ValueError, KeyError, AttributeError, ValidationError):
            pass
        return None

    def _lock(self, name: str) -> str:
        return self.store.at(f"{SIDECAR}/{name}.lock")

    def _holders(self, fd: int) -> str:
        """Describe the possible holders of the register: current writers, else the last exclusive holder."""
        parts = [part_name(index, self.suffix) for index in range(len(self.peek().writers()))]
        busy = [part for part in parts if is_locked(self._lock(part))]
        return self._writers(busy) if busy else _last_alone(fd)

    def _writers(self, parts: Sequence[str]) -> str:
        records = self.peek()
        named = [f"{part} {described(records.part(part))}" for part in parts[:_NAMED]]
        return ", ".join(named) + (f" and {len(parts) - _NAMED} more parts are locked" if len(parts) > _NAMED else "")


def described(found: RegisterEntry | None) -> str:
    """Return a predicate about a part for an error, such as "was written by generation 3, …"."""
    return f"was {found}" if found is not None else "has no record of its writer"


def _last_alone(fd: int) -> str:
    try:
        found = parse_json(read_line(fd, _ALONE))
        return f"the last driver to hold it was host {found['host']}, pid {found['pid']}"
    except (ValueError, KeyError, TypeError):
        return "no driver has held it yet"


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
