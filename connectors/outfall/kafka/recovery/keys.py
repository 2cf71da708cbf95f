"""The keys of records, as text that any Kafka tool can show.

```
<prefix>-progress   <step>/entry/<number>/<token>/<chunks>     an entry; its value, or none if it is in chunks
                    <step>/chunk/<number>/<token>/<index>      a piece of an entry, before the entry
                    <step>/copied/<newest>/<token>/<number>/<index>/<chunks>
                                                               a piece of an entry of another log, before the copy
                    <step>/copy/<newest>/<token>               makes the entries of that log valid
                    <step>/state/<name>/<chunks>               announces a large state; the value is its length
                    <step>/state/<name>/<chunks>/<offset>      location of a state named by another log
                    ~heartbeat/<step>/<name>                   who retries; skipped, because no step has this name
<prefix>-state      <step>/<name>/<index>/<chunks>             a piece of a large state
```
Each key except a heartbeat's is used by one record and its tombstones: the token, and the end of a state's name, are
random. There is one exception: if a copy is repeated after a failure, the pieces of a state have the same keys and
values again. A release that does not know a kind of key rejects the log.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from outfall.errors import RecordError
from outfall.recovery.log import check_state_name, heartbeat_generation, state_generation, state_name

_STORED = re.compile(r"(?P<name>.*\.state)\.(?P<offset>[0-9]{1,19})-(?P<chunks>[0-9]{1,9})")


@dataclass(frozen=True)
class EntryKey:
    """An entry: its number and the token of its writer."""

    step: str
    number: int
    token: str
    chunks: int

    @classmethod
    def new(cls, step: str, number: int, chunks: int) -> EntryKey:
        """Create a new key with a random token."""
        return cls(step, number, uuid.uuid4().hex, chunks)

    def __str__(self) -> str:
        return f"{self.step}/entry/{self.number:020d}/{self.token}/{self.chunks}"

    def chunk(self, index: int) -> ChunkKey:
        """Return the key of one of its chunks."""
        return ChunkKey(self.step, self.number, self.token, index)


@dataclass(frozen=True)
class ChunkKey:
    """A piece of an entry."""

    step: str
    number: int
    token: str
    index: int

    def __str__(self) -> str:
        return f"{self.step}/chunk/{self.number:020d}/{self.token}/{self.index}"


@dataclass(frozen=True)
class CopyKey:
    """A copy of another log: it takes all numbers up to that log's newest."""

    step: str
    number: int
    token: str

    @classmethod
    def new(cls, step: str, number: int) -> CopyKey:
        """Create a new key with a random token."""
        return cls(step, number, uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"{self.step}/copy/{self.number:020d}/{self.token}"

    def pieces(self, number: int, chunks: int) -> list[CopiedKey]:
        """Return the keys of the pieces of one of its entries."""
        return [CopiedKey(self, number, index, chunks) for index in range(chunks)]


@dataclass(frozen=True)
class CopiedKey:
    """A piece of an entry of a copy. The first piece stands for the entry."""

    copy: CopyKey
    number: int
    index: int
    chunks: int

    def __str__(self) -> str:
        copy = self.copy
        place = f"{copy.number:020d}/{copy.token}"
        return f"{copy.step}/copied/{place}/{self.number:020d}/{self.index}/{self.chunks}"

    def all(self) -> list[CopiedKey]:
        """Return the keys of all pieces of the entry."""
        return self.copy.pieces(self.number, self.chunks)


@dataclass(frozen=True)
class StateKey:
    """A large state: announced, or located if its name comes from another log."""

    step: str
    name: str
    chunks: int
    offset: int | None = None
    """The offset of its first piece, if this key gives its location."""

    @classmethod
    def new(cls, step: str, label: str, generation: int, chunks: int) -> StateKey:
        """Create a new key with a random token."""
        return cls(step, state_name(label, generation), chunks)

    def __str__(self) -> str:
        announced = f"{self.step}/state/{self.name}/{self.chunks}"
        return announced if self.offset is None else f"{announced}/{self.offset}"

    @property
    def generation(self) -> int:
        """The generation that wrote it."""
        return state_generation(self.name) or 0

    def pieces(self) -> list[str]:
        """Return the keys of its pieces, in the topic of states."""
        return [f"{self.step}/{self.name}/{index}/{self.chunks}" for index in range(self.chunks)]

    def stored_name(self, offset: int) -> str:
        """Return its key, which contains the offset of its first chunk."""
        return f"{self.name}.{offset}-{self.chunks}"


def heartbeat_key(step: str, name: str) -> str:
    """Return the key of a heartbeat."""
    return f"~heartbeat/{step}/{name}"


def heartbeat_of(step: str, key: str) -> str | None:
    """Return the name of a heartbeat of this step; `None` for any other key."""
    owner, _, name = key.partition(f"/{step}/")
    return name if owner == "~heartbeat" and heartbeat_generation(name) is not None else None


def own_name(stored: str) -> str:
    """Return a state's name without its offset, which is specific to the Kafka store.

    Raises `RecordError` if it is not the name of a state.
    """
    match = _STORED.fullmatch(check_state_name(stored))
    return stored if match is None else match["name"]


def written_here(step: str, stored: str) -> StateKey | None:
    """Return the offset in a name, in the topic that the state was written to; `None` if it has none."""
    match = _STORED.fullmatch(check_state_name(stored))
    return None if match is None else StateKey(step, match["name"], int(match["chunks"]), int(match["offset"]))


ProgressKey = EntryKey | ChunkKey | CopyKey | CopiedKey | StateKey


def parse_key(step: str, key: str) -> ProgressKey | None:
    """Parse a key of the progress topic; `None` for one of another step.

    Raises `RecordError` if it belongs to this step and has an unknown kind.
    """
    owner, *rest = key.split("/")
    if owner != step:
        return None
    match rest:
        case ["entry", number, token, chunks] if _numbers(number, chunks):
            return EntryKey(step, int(number), token, int(chunks))
        case ["chunk", number, token, index] if _numbers(number, index):
            return ChunkKey(step, int(number), token, int(index))
        case ["copy", newest, token] if _numbers(newest):
            return CopyKey(step, int(newest), token)
        case ["copied", newest, token, number, index, chunks] if _numbers(newest, number, index, chunks):
            return CopiedKey(CopyKey(step, int(newest), token), int(number), int(index), int(chunks))
        case ["state", name, chunks, *offset] if _numbers(chunks, *offset) and state_generation(name) is not None:
            if len(offset) < 2:
                return StateKey(step, name, int(chunks), *map(int, offset))
    raise RecordError(
        f"the progress topic has a record {key!r} of an unknown kind",
        step=step,
        do="run the release that wrote it, or a newer one",
    )


def _numbers(*texts: str) -> bool:
    return all(text.isdecimal() for text in texts)
