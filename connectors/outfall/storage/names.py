"""Names of files and objects: they sort by epoch and task, and identify the attempt that wrote them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from outfall.capabilities import WriterInitContext

SIDECAR = "_outfall"
"""The directory for everything except data. Readers skip it."""
SPARK_LOG = "_spark_metadata"
"""The log of Spark's own streaming file sink. If it exists, Spark reads only the files in it."""
BY_SPARK = ".by_spark"
"""The suffix of an attempt's directory that Spark's writer fills."""
SUMMARIES = ("_SUCCESS", "_metadata", "_common_metadata")
"""Files in which other writers describe a whole directory. They become wrong when its files are replaced."""

_NAME = r"part-(\d{10,})-(\d{5,})-(\d{5,})()-([0-9a-f]+)-g(\d+)-a(\d+)((?:\.\w+)+)"
_OF_FILE = re.compile(_NAME)
_OF_OBJECT = re.compile(_NAME.replace("()", "-(.+)"))


@dataclass(frozen=True)
class AttemptName:
    """The name of a file or an object. It belongs to one attempt, is never reused, and publishing keeps it."""

    epoch: int
    worker_index: int
    sequence: int
    """The index of the file among those of its attempt."""
    step_id: str
    """Empty in names of files. Names of objects include it, to identify them in a bucket listing."""
    incarnation: str
    generation: int
    attempt: int
    suffix: str

    @classmethod
    def of(cls, context: WriterInitContext, sequence: int, suffix: str, *, step_id: str = "") -> Self:
        """Return the name of the next file of an attempt."""
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
        """Parse the last level of a path; `None` if it is not such a name."""
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


def within_own(path: str) -> str | None:
    """Return the directory of a sink's own files that a path of a target is in; `None` if it is in none."""
    return next((level for level in path.split("/") if level in (SIDECAR, SPARK_LOG)), None)


def is_hidden(relative: str) -> bool:
    """Return whether Spark's readers skip a path below the target.

    They do if a level begins with `.` or with `_` (without `column=`), or if the path ends in `/` (a folder record).
    """
    levels = relative.split("/")
    return not levels[-1] or any(
        level.startswith(".") or (level.startswith("_") and "=" not in level) for level in levels
    )
