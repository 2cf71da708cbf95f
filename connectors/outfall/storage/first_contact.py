"""First contact with a target: whose data is there, and whether `on_existing` puts up with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice

from outfall.errors import TargetNotEmptyError
from outfall.storage.names import SPARK_LOG


class TargetContents(ABC):
    """What lies at a target, as one step sees it: its own is left out of all answers. Texts name what was found."""

    where: str
    """The target."""

    @abstractmethod
    def has_spark_log(self) -> bool:
        """Whether Spark's own streaming file sink has written here."""

    @abstractmethod
    def others(self) -> Sequence[str]:
        """Return the markers of the other steps that write here, or did."""

    @abstractmethod
    def foreign(self) -> Iterable[str]:
        """Yield what readers see; no more is looked up than is asked for."""

    @abstractmethod
    def nested(self) -> Iterable[str]:
        """Yield the markers of targets within this one, or around it, that `on_existing` does not put up with."""


def check_existing(contents: TargetContents, on_existing: str, step_id: str) -> None:
    """Refuse a target that holds what is not ours, unless `on_existing` says what to do with it. Changes nothing.

    Raises:
        TargetNotEmptyError: naming what was found.
    """
    for marker in contents.nested():
        raise nested_targets(contents.where, step_id, marker)
    if on_existing == "overwrite":
        return
    if contents.has_spark_log():
        raise _listed_by_spark(contents.where, step_id)
    if on_existing == "resume":
        return
    others = contents.others()
    if others:
        raise _not_empty(contents.where, step_id, f"another query writes there: {others[0]}")
    found = list(islice(contents.foreign(), 3))
    if found:
        raise _not_empty(contents.where, step_id, f"it holds {', '.join(found)}")


def nested_targets(where: str, step_id: str, marker: str) -> TargetNotEmptyError:
    """Make the error of a target within another query's, or around it."""
    return TargetNotEmptyError(
        f"{where} and the target of another query lie one within the other",
        step=step_id,
        why=f"that query's marker is {marker}: readers of the outer one would see the rows of both, and overwriting it"
        " would delete both",
        do="name a path beside it; or, once that query has ended for good, delete its _outfall",
    )


def _not_empty(where: str, step_id: str, why: str) -> TargetNotEmptyError:
    return TargetNotEmptyError(
        f"{where} is not empty",
        step=step_id,
        why=why,
        do='delete what lies there (with its _outfall), name another path, or set on_existing="resume" to keep what is'
        ' there or on_existing="overwrite" to delete it',
    )


def _listed_by_spark(where: str, step_id: str) -> TargetNotEmptyError:
    return TargetNotEmptyError(
        f"{where} holds {SPARK_LOG}, the log of Spark's own streaming file sink",
        step=step_id,
        why="Spark reads only the files that this log lists, so that rows written beside them would not be seen",
        do="name another path; or stop the query that writes there, and delete the log to keep its files (also those of"
        ' epochs that it did not complete), or set on_existing="overwrite" to delete the log and the files',
    )
