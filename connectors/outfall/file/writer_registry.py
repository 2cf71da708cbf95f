"""The register: who may write which part, in one file that is also the lock between the driver and all writers.

```
line 0      the driver that took the step's parts over or sealed them last
line 1      who held the register alone last
line 2 + i  the last writer of part i
```
A writer holds its part's own lock file, which keeps other attempts at the part away, and then the register shared, for
one check and one write. A driver that takes over, seals or cuts holds the register alone, and nothing else: while it
does nobody is between a check and a write. Who holds the register waits for no other lock, so there are no circles.

Each driver enters line 0 before its tasks begin, with the token of its BEGIN, and durably: of two copies of a log that
are in use at once, the one that comes second is refused. Nothing else is synced. It stops processes that live, and a
power loss leaves none; what a torn line loses, the log knows, so a line that cannot be read counts as absent. Only who
writes or seals must find its driver's.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from outfall.file.flock import LINE, Patience, is_locked, line_of, locked, read_line, write_line
from outfall.file.growing_names import part_index, part_name
from outfall.file.layout import Layout
from outfall.file.writer_record import WriterRecord, refuse_stale, refuse_unopened, stale

_STEP, _ALONE, _PARTS = 0, 1, 2

_NAMED = 5
"""How many holders of locks an error names."""


class Records:
    """What the register says at one moment."""

    def __init__(self, data: bytes) -> None:
        self._lines = [line_of(data[start : start + LINE]) for start in range(0, len(data), LINE)]

    @property
    def step(self) -> WriterRecord | None:
        """The driver that took the parts over or sealed them last."""
        return WriterRecord.parse(self._line(_STEP))

    def part(self, part: str) -> WriterRecord | None:
        """The last writer of a part."""
        return WriterRecord.parse(self._line(_PARTS + part_index(part)))

    def writers(self) -> list[WriterRecord | None]:
        """The last writer of each part, in the order of their indices, as far as parts have had one."""
        return WriterRecord.parse_all(self._lines[_PARTS:])

    def same_as(self, other: Records) -> bool:
        """Whether nobody has taken anything over meanwhile."""
        return (self._line(_STEP), self._lines[_PARTS:]) == (other._line(_STEP), other._lines[_PARTS:])

    def _line(self, number: int) -> bytes:
        return self._lines[number] if number < len(self._lines) else b""


@dataclass(frozen=True)
class WritablePart:
    """A part whose lock its writer holds, with the register shared."""

    part: str
    _fd: int

    def take_over(self, mine: WriterRecord) -> bool:
        """Check that an attempt may open the part.

        Returns:
            Whether another attempt of the same BEGIN had it before: what that one cut or removed may not be durable.

        Raises:
            StaleWriterError: a newer writer has it, its BEGIN did not open the parts last, or they are sealed.
        """
        refuse_unopened(self._step(), mine, self.part)
        found = self._writer()
        refuse_stale(found, mine, self.part)
        return found is not None and found.is_of_the_begin_of(mine)

    def enter(self, mine: WriterRecord) -> None:
        """Make an attempt the part's writer."""
        write_line(self._fd, mine.line(), _PARTS + part_index(self.part))

    def check_still(self, mine: WriterRecord) -> None:
        """Check that an attempt is still the part's writer.

        Raises:
            StaleWriterError: it is not.
        """
        refuse_unopened(self._step(), mine, self.part)
        found = self._writer()
        if found != mine:
            raise stale(found, mine, self.part)

    def _step(self) -> WriterRecord | None:
        return WriterRecord.parse(read_line(self._fd, _STEP))

    def _writer(self) -> WriterRecord | None:
        return WriterRecord.parse(read_line(self._fd, _PARTS + part_index(self.part)))


@dataclass(frozen=True)
class HeldRegister:
    """The register while its driver holds it alone."""

    _fd: int

    @cached_property
    def records(self) -> Records:
        """What it said when it was taken."""
        return Records(_read(self._fd))

    def enter(self, driver: WriterRecord) -> None:
        """Make a record the step's. Writers stay entered, as far as the record lets them."""
        write_line(self._fd, driver.line(), _STEP)

    def clear(self, driver: WriterRecord) -> None:
        """Make a record the step's, and all writers strangers, newer ones too."""
        self.enter(driver)
        os.ftruncate(self._fd, _PARTS * LINE)

    def sync(self) -> None:
        """Make durable who opened the parts: what is known to have been opened since may not seem older."""
        os.fsync(self._fd)


@dataclass(frozen=True)
class Register:
    """The register of the parts with one suffix in one directory."""

    layout: Layout
    suffix: str
    patience: Patience

    @property
    def path(self) -> str:
        """The file."""
        return self.layout.register(self.suffix)

    @contextmanager
    def writing(self, part: str) -> Iterator[WritablePart]:
        """Hold a part for one write.

        Raises:
            TransientError: another attempt or a driver is stopped while it holds a lock; the text names it.
            TargetLostError: the directory is gone.
        """
        with (
            locked(self.layout.lock(part), self.patience, holder=lambda _: self._writers([part])),
            locked(self.path, self.patience, shared=True, holder=_last_alone) as fd,
        ):
            yield WritablePart(part, fd)

    @contextmanager
    def alone(self) -> Iterator[HeldRegister]:
        """Keep all writers away.

        Raises:
            TransientError: as for `writing`.
            TargetLostError: the directory is gone.
        """
        with locked(self.path, self.patience, holder=self._holders) as fd:
            write_line(fd, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}), _ALONE)
            yield HeldRegister(fd)

    def peek(self) -> Records:
        """Read the register without its lock: what is written meanwhile may seem absent."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return Records(b"")
        try:
            return Records(_read(fd))
        finally:
            os.close(fd)

    def _holders(self, fd: int) -> str:
        """Say who may keep the register from being held alone: who writes a part now, else who held it so last."""
        parts = [part_name(index, self.suffix) for index in range(len(self.peek().writers()))]
        busy = [part for part in parts if is_locked(self.layout.lock(part))]
        return self._writers(busy) if busy else _last_alone(fd)

    def _writers(self, parts: Sequence[str]) -> str:
        records = self.peek()
        named = [f"{part} is {records.part(part) or 'without a record of its writer'}" for part in parts[:_NAMED]]
        return ", ".join(named) + (f" and {len(parts) - _NAMED} more are held" if len(parts) > _NAMED else "")


def _last_alone(fd: int) -> str:
    try:
        found = json.loads(read_line(fd, _ALONE))
        return f"the last driver to hold it was host {found['host']}, pid {found['pid']}"
    except (ValueError, KeyError, TypeError):
        return "nobody has entered it yet"


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
