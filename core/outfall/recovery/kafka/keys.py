"""The keys of records: what each is, in text that can be read with any Kafka tool.

```
<prefix>-progress   <step>/entry/<number>/<token>/<chunks>     an entry; its value, or none when it lies in chunks
                    <step>/chunk/<number>/<token>/<index>      a piece of an entry, before the entry
                    <step>/state/<name>/<chunks>               a large state is being written; its value is the length
<prefix>-state      <step>/<name>/<index>                      a piece of a large state
```
Each key is used by one record and its tombstones: the token, and the end of a state's name, are random. A release that
does not know a kind refuses the log.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from outfall.errors import RecordError
from outfall.recovery.names import check_state_name, state_generation, state_name

_STORED = re.compile(r"(?P<name>[^@]*)@(?P<offset>[0-9]{1,19})\+(?P<chunks>[0-9]{1,9})")


@dataclass(frozen=True)
class EntryKey:
    """An entry: the number it wants, and who wants it."""

    step: str
    number: int
    token: str
    chunks: int

    @classmethod
    def new(cls, step: str, number: int, chunks: int) -> EntryKey:
        """Make a key that nobody else has."""
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
class StateKey:
    """A large state, announced."""

    step: str
    name: str
    chunks: int

    @classmethod
    def new(cls, step: str, label: str, generation: int, chunks: int) -> StateKey:
        """Make a key that nobody else has."""
        return cls(step, state_name(label, generation), chunks)

    def __str__(self) -> str:
        return f"{self.step}/state/{self.name}/{self.chunks}"

    @property
    def generation(self) -> int:
        """The generation that wrote it."""
        return state_generation(self.name) or 0

    def pieces(self) -> list[str]:
        """Return the keys of its chunks, in the topic of states."""
        return [f"{self.step}/{self.name}/{index}" for index in range(self.chunks)]

    def stored_name(self, offset: int) -> str:
        """Return the name to read it back with: it says where its chunks begin."""
        return f"{self.name}@{offset}+{self.chunks}"

    @classmethod
    def stored(cls, step: str, stored: str) -> tuple[StateKey, int]:
        """Understand a name that `stored_name` gave: the key, and the offset of the first chunk.

        Raises:
            RecordError: it is no such name.
        """
        match = _STORED.fullmatch(stored)
        if match is None:
            raise RecordError(
                f"{stored!r} is not the name of a state in Kafka", step=step, do="restore the recovery data from a copy"
            )
        return cls(step, check_state_name(match["name"]), int(match["chunks"])), int(match["offset"])


ProgressKey = EntryKey | ChunkKey | StateKey


def parse_key(step: str, key: str) -> ProgressKey | None:
    """Understand a key of the progress topic; `None` for one of another step.

    Raises:
        RecordError: it is of this step, and of a kind that this version does not know.
    """
    owner, *rest = key.split("/")
    if owner != step:
        return None
    match rest:
        case ["entry", number, token, chunks] if number.isdecimal() and chunks.isdecimal():
            return EntryKey(step, int(number), token, int(chunks))
        case ["chunk", number, token, index] if number.isdecimal() and index.isdecimal():
            return ChunkKey(step, int(number), token, int(index))
        case ["state", name, chunks] if chunks.isdecimal() and state_generation(name) is not None:
            return StateKey(step, name, int(chunks))
    raise RecordError(
        f"the progress topic has a record {key!r}, which this version does not know",
        step=step,
        do="run the release that wrote it, or a newer one",
    )
