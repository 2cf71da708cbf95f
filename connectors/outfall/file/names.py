"""Names of whole files: they sort by epoch, task and age, and say which attempt wrote them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from outfall.capabilities import WriterInitContext

_NAME = re.compile(r"part-(\d{10,})-(\d{5,})-(\d{5,})-([0-9a-f]+)-g(\d+)-a(\d+)((?:\.\w+)+)")


@dataclass(frozen=True)
class FileName:
    """Whose a whole file is. Published or not, it keeps its name."""

    epoch: int
    worker_index: int
    sequence: int
    """Which file of its attempt it is."""
    incarnation: str
    generation: int
    attempt: int
    suffix: str

    @classmethod
    def of(cls, context: WriterInitContext, sequence: int, suffix: str) -> Self:
        """Name a file of an attempt."""
        return cls(
            context.epoch,
            context.worker_index,
            sequence,
            context.incarnation,
            context.generation,
            context.attempt,
            suffix,
        )

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a name; `None` for one that is not of this kind."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        epoch, worker, sequence, incarnation, generation, attempt, end = match.groups()
        return cls(int(epoch), int(worker), int(sequence), incarnation, int(generation), int(attempt), end)

    def __str__(self) -> str:
        return (
            f"part-{self.epoch:010d}-{self.worker_index:05d}-{self.sequence:05d}"
            f"-{self.incarnation}-g{self.generation}-a{self.attempt}{self.suffix}"
        )
