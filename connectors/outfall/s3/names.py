"""Names of objects: they sort by epoch and task, and say which attempt of whom uploaded them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from outfall.capabilities import WriterInitContext

SIDECAR = "_outfall"
"""What is not data lies below it, where readers of the prefix do not look."""
SPARK_LOG = "_spark_metadata"
"""Below it Spark's own streaming file sink lists what it wrote. Where it is, Spark reads nothing else."""
SUMMARIES = ("_SUCCESS", "_metadata", "_common_metadata")
"""What other writers say of a prefix as a whole. It is not true any more once what is there was replaced."""

_NAME = re.compile(r"part-(\d{10,})-(\d{5,})-(\d{5,})-(.+)-([0-9a-f]{16})-g(\d+)-a(\d+)((?:\.\w+)+)")


@dataclass(frozen=True)
class ObjectName:
    """Whose an object is, or an upload. A name is of one attempt and never used twice."""

    epoch: int
    worker_index: int
    sequence: int
    """Which object of its attempt it is."""
    step_id: str
    incarnation: str
    generation: int
    attempt: int
    suffix: str

    @classmethod
    def of(cls, context: WriterInitContext, sequence: int, suffix: str) -> Self:
        """Name an object of an attempt."""
        return cls(
            context.epoch,
            context.worker_index,
            sequence,
            context.step_id,
            context.incarnation,
            context.generation,
            context.attempt,
            suffix,
        )

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """Read the name at a key's end; `None` for one that is not of this kind."""
        match = _NAME.fullmatch(key.rpartition("/")[2])
        if match is None:
            return None
        epoch, worker, sequence, step, incarnation, generation, attempt, end = match.groups()
        return cls(int(epoch), int(worker), int(sequence), step, incarnation, int(generation), int(attempt), end)

    def __str__(self) -> str:
        return (
            f"part-{self.epoch:010d}-{self.worker_index:05d}-{self.sequence:05d}-{self.step_id}"
            f"-{self.incarnation}-g{self.generation}-a{self.attempt}{self.suffix}"
        )


def is_hidden(relative: str) -> bool:
    """Tell whether Spark's readers skip a key below the prefix.

    A level begins with `.` or `_` (and no `column=`); or it ends in `/`, and so stands for a folder.
    """
    levels = relative.split("/")
    return not levels[-1] or any(
        level.startswith(".") or (level.startswith("_") and "=" not in level) for level in levels
    )
