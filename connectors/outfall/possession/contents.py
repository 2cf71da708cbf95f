"""The first run against a target: existing data, and whether `on_existing` allows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice

from outfall.errors import TargetNotEmptyError
from outfall.existing import Existing
from outfall.storage.names import SPARK_LOG


class TargetContents(ABC):
    """The contents of a target from the view of one step, without its own data. Strings name what was found."""

    where: str
    """The target."""

    @abstractmethod
    def has_spark_log(self) -> bool:
        """Whether Spark's own streaming file sink has written here."""

    @abstractmethod
    def others(self) -> Sequence[str]:
        """Return the records of other steps that write here or have written here."""

    @abstractmethod
    def foreign(self) -> Iterable[str]:
        """Yield visible data of other writers, lazily."""

    @abstractmethod
    def nested(self) -> Iterable[str]:
        """Yield the records of targets inside or around this one that `on_existing` does not allow."""


def check_existing(contents: TargetContents, existing: Existing, step_id: str) -> None:
    """Raise `TargetNotEmptyError` for existing data in a target, unless `on_existing` allows it. Changes nothing."""
    for record in contents.nested():
        raise nested_targets(contents.where, step_id, record)
    if existing.others == "delete":
        return
    if contents.has_spark_log():
        raise _listed_by_spark(contents.where, step_id)
    if existing.others == "keep":
        return
    others = contents.others()
    if others:
        raise TargetNotEmptyError(
            f"{contents.where} is not empty",
            step=step_id,
            why=f"another query writes to it: {others[0]}",
            do="use another path; if it is this query, whose checkpoint is lost, restore the checkpoint; or, if that"
            " query has ended permanently, set" + _KEEP_OR_DELETE,
        )
    found = list(islice(contents.foreign(), 3))
    if found:
        raise TargetNotEmptyError(
            f"{contents.where} is not empty",
            step=step_id,
            why=f"it contains {', '.join(found)}",
            do="use another path, or set" + _KEEP_OR_DELETE,
        )


_KEEP_OR_DELETE = ' on_existing="resume" to add to the data, or on_existing="overwrite" to replace it'


def nested_targets(where: str, step_id: str, record: str) -> TargetNotEmptyError:
    """Return the error of a target inside or around the target of another query."""
    return TargetNotEmptyError(
        f"{where} is inside or around the target of another query",
        step=step_id,
        why=f"the record of that query is {record}: readers of the outer target would see the rows of both, and"
        " overwriting it would delete both",
        do="use a separate path; or, if that query has ended permanently, delete its _outfall",
    )


def _listed_by_spark(where: str, step_id: str) -> TargetNotEmptyError:
    return TargetNotEmptyError(
        f"{where} contains {SPARK_LOG}, the log of Spark's own streaming file sink",
        step=step_id,
        why="Spark reads only the files in this log, so readers would not see new rows",
        do="use another path; or keep its files as in docs/recipes/migrate-from-file-sink.md: finish the last batch of"
        " the old query, delete the files that are not in the log, and only then move the log away; or set"
        ' on_existing="overwrite" to delete the log and the files',
    )
