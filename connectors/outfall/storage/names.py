"""Names of what attempts write: they sort by epoch and task, and say which attempt of whom wrote them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from outfall.capabilities import WriterInitContext

SIDECAR = "_outfall"
"""What is not data lies below it, where readers do not look."""
SPARK_LOG = "_spark_metadata"
"""Below it Spark's own streaming file sink lists what it wrote. Where it is, Spark reads nothing else."""
SUMMARIES = ("_SUCCESS", "_metadata", "_common_metadata")
"""What other writers say of a directory as a whole. It is not true any more once what is there was replaced."""

_NAME = r"part-(\d{10,})-(\d{5,})-(\d{5,})()-([0-9a-f]+)-g(\d+)-a(\d+)((?:\.\w+)+)"
_OF_FILE = re.compile(_NAME)
_OF_OBJECT = re.compile(_NAME.replace("()", "-(.+)"))


@dataclass(frozen=True)
class AttemptName:
    """Whose a file or an object is. A name is of one attempt and never used twice; publishing does not change it."""

    epoch: int
    worker_index: int
    sequence: int
    """Which one of its attempt it is."""
    step_id: str
    """Empty in the names of files: those of objects say it, for whoever lists a bucket."""
    incarnation: str
    generation: int
    attempt: int
    suffix: str

    @classmethod
    def of(cls, context: WriterInitContext, sequence: int, suffix: str, *, step_id: str = "") -> Self:
        """Name what an attempt writes."""
        return cls(
            context.epoch,
            context.worker_index,
            sequence,
            step_id,
            context.incarnation,
            context.generation,
            context.attempt,
            suffix,
        )

    @classmethod
    def parse(cls, path: str, *, with_step: bool = False) -> Self | None:
        """Read the name at a path's end; `None` for one that is not of this kind."""
        match = (_OF_OBJECT if with_step else _OF_FILE).fullmatch(path.rpartition("/")[2])
        if match is None:
            return None
        epoch, worker, sequence, step, incarnation, generation, attempt, end = match.groups()
        return cls(int(epoch), int(worker), int(sequence), step, incarnation, int(generation), int(attempt), end)

    def __str__(self) -> str:
        step = f"-{self.step_id}" if self.step_id else ""
        return (
            f"part-{self.epoch:010d}-{self.worker_index:05d}-{self.sequence:05d}{step}"
            f"-{self.incarnation}-g{self.generation}-a{self.attempt}{self.suffix}"
        )


def is_hidden(relative: str) -> bool:
    """Tell whether Spark's readers skip a path below the target.

    A level begins with `.` or `_` (and no `column=`); or it ends in `/`, and so stands for a folder.
    """
    levels = relative.split("/")
    return not levels[-1] or any(
        level.startswith(".") or (level.startswith("_") and "=" not in level) for level in levels
    )
