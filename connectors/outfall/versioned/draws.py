"""Versions: drawn at each BEGIN from a counter record in the target, and kept in the target's record of the step.

No clock decides. A BEGIN reads the record of its step, draws a number above all earlier ones from the counter, and
replaces the record, both by compare-and-swap. If another driver has replaced the record in between, it starts again and
draws again, so of two drivers the one with the newer BEGIN has the higher version. The tasks read the version from the
record, and refuse one of another BEGIN. The counter serves all steps that write to the target: a replay, a new
checkpoint and a batch job that begin later each have the higher version.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from pydantic import ValidationError

from outfall.async_sink.retrying import RETRIES
from outfall.capabilities import TargetContext, WriterInitContext
from outfall.errors import StaleWriterError, TargetError, TargetLostError
from outfall.possession.possession import FoundRecord, RecordPort
from outfall.possession.record import StepRecord, unreadable_record
from outfall.retry_loop import patiently
from outfall.target_record import check_writing

COUNTER = "version"
"""The name of the counter's record."""
GAP = 1 << 12
"""The distance between two versions: a server may raise the version of a row that another client rewrites."""

CONTRADICTIONS = 12
"""So often, within some three seconds, a store may say that a record is not what it returned: reads can be late."""

T = TypeVar("T")


class Answer(Enum):
    """What a server does with a write that carries a version."""

    WRITTEN = "written"
    SAME = "same"
    """Nothing: this row was stored with this version before, by an attempt whose response was lost."""
    REPLACED = "replaced"
    """It replaces a row of the same key and version, whose rank is lower."""
    OUTRANKED = "outranked"
    """Nothing: a row of the same key and version with a higher rank is stored."""
    STALE = "stale"
    """Nothing: a higher version is stored, which is another run's."""


@dataclass(frozen=True)
class Version:
    """The version that all writes of one BEGIN carry."""

    number: int
    """Greater than that of every earlier BEGIN on the target; a multiple of `GAP`. With sequences always the same."""
    token: str
    """The token of the BEGIN. It distinguishes two drivers with the same number, which a restored counter can cause."""

    def answer(self, rank: str, stored: Version, stored_rank: str) -> Answer:
        """Return what becomes of a write with this version and a rank, if a row with another version is stored.

        For a sink whose server returns what it has stored. Nothing of the key being stored is `WRITTEN` too.

        Args:
            rank: of the row to write, as `KeyedRow` has it.
            stored: the version of the stored row. A server may have raised its number.
            stored_rank: the rank of the stored row.
        """
        if stored.number < self.number:
            return Answer.WRITTEN
        # The number does not tell: OpenSearch raises it by one for each row that replaces another one of a key.
        if stored.token != self.token:
            return Answer.STALE
        if stored_rank == rank:
            return Answer.SAME
        return Answer.REPLACED if stored_rank < rank else Answer.OUTRANKED


BY_SEQUENCE = Version(1 << 52, "sequence")
"""The version of all rows with a sequence, of any BEGIN: their ranks, which begin with the sequence, decide.

Above all that are drawn, and exact as a double, which numbers are in Redis.
"""


class RecordStore(ABC):
    """Small named texts in a target, replaced by compare-and-swap. Errors are `OutfallError`s that name the target."""

    where: str
    """The target, for errors and without secrets."""

    @abstractmethod
    def read(self, name: str) -> str | None:
        """Return the text of a record as last replaced; `None` if there is none."""

    @abstractmethod
    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        """Replace a record if it is `old` (`None`: absent), atomically and durably; with `None`, remove it.

        Returns whether it was `old`. If a response is lost, the record may be `new` although an error is raised.
        """


class RetryingStore(RecordStore):
    """A store that retries calls that raise `TransientError`, until a deadline.

    If the response of a replacement is lost, it reports failure; the caller then reads the record again.
    """

    def __init__(self, store: RecordStore, deadline: float) -> None:
        """Repeat the calls of `store`, each for `deadline` seconds."""
        self.where = store.where
        self._store = store
        self._deadline = deadline

    def read(self, name: str) -> str | None:
        return self._patiently("reading", name, lambda: self._store.read(name))

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        return self._patiently("writing", name, lambda: self._store.replace(name, old, new))

    def _patiently(self, doing: str, name: str, call: Callable[[], T]) -> T:
        return patiently(RETRIES, self.where, f"{doing} the record {name}", call, self._deadline)


class VersionRecord(StepRecord):
    """The record of a step, with the version of the BEGIN that opened the target last."""

    version: int = 0

    @property
    def ready(self) -> bool:
        """Always: nothing is deleted on the first run."""
        return True


class VersionPort(RecordPort[VersionRecord]):
    """Takes possession for a step: each BEGIN writes its record, with a version of its own."""

    ahead = "restore the newest recovery data, or start the query with a new checkpoint"

    def __init__(self, store: RecordStore, name: str) -> None:
        """Use the record of this name."""
        self.store = store
        self.where = store.where
        self.name = name

    def read(self) -> FoundRecord[VersionRecord] | None:
        text = self.store.read(self.name)
        return None if text is None else FoundRecord(_parsed(self.name, text), text)

    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        return TargetLostError(
            f"{self.where} does not hold the data written up to epoch {epoch}",
            step=context.step_id,
            epoch=context.epoch,
            why=f"the record {self.name} is missing: the target was emptied or replaced, or lost acknowledged writes;"
            " or the earlier epochs were written with versions=False",
            do="restore the target, or start the query with a new checkpoint: its versions are higher than all earlier"
            " ones, so it overwrites existing rows",
        )

    def rename_from(self, former: VersionPort) -> None:
        """Give the record of another name this one, unless that has happened."""
        found = former.read()
        if found is None:
            return
        # In this order: an interrupted call leaves both, and the next one removes the former.
        if self.read() is None:
            self.store.replace(self.name, None, found.stored.model_dump_json())
        former.store.replace(former.name, found.version, None)

    def check_existing(self, context: TargetContext[Any]) -> None:
        pass  # rows of other writers remain

    def create(self, context: TargetContext[Any]) -> None:
        self.store.replace(self.name, None, VersionRecord.of(context).model_dump_json())

    def open(
        self, context: TargetContext[Any], change: Callable[[FoundRecord[VersionRecord]], VersionRecord]
    ) -> VersionRecord | None:
        def opened(text: str | None) -> str | None:
            if text is None:
                return None
            stored = _parsed(self.name, text)
            record = change(FoundRecord(stored, text))
            return record.model_copy(update={"version": draw(self.store, above=stored.version)}).model_dump_json()

        text = _swapped(self.store, self.name, opened)
        return None if text is None else _parsed(self.name, text)


def draw(store: RecordStore, *, above: int = 0) -> int:
    """Return a number that is greater than `above` and than all that were drawn before."""

    def drawn(text: str | None) -> str:
        try:
            last = 0 if text is None else int(text)
        except ValueError as error:
            raise unreadable_record(COUNTER, "it is not a number") from error
        return str((max(last, above) // GAP + 1) * GAP)

    return int(_swapped(store, COUNTER, drawn) or 0)


def _swapped(store: RecordStore, name: str, change: Callable[[str | None], str | None]) -> str | None:
    """Replace a record by what `change` makes of its text, which may be `None` for nothing; return the new text.

    Another driver may replace it in between, and then the record differs. A record that stays as it was read, and is
    not replaced, ends the query instead of a loop without an end.
    """
    before, times = None, 0
    while (text := change(found := store.read(name))) is not None and not store.replace(name, found, text):
        times = times + 1 if found == before else 1
        before = found
        if times == CONTRADICTIONS:
            raise TargetError(
                f"{store.where} does not replace the record {name}",
                why=f"it was read {times} times with the same text, and each time not replaced because it had another",
                do="make sure that reads return the last write and the same text, and that replacements are reported",
            )
        time.sleep(0.05 * (times - 1))
    return text


def version_of(port: VersionPort, context: WriterInitContext) -> Version:
    """Return the version of a task's BEGIN.

    Raises `FencedError` if a newer driver or that of a copied log has opened the target since, and `StaleWriterError`
    if the record is missing or older: the target was replaced, or its step has ended.
    """
    found = port.read()
    if found is not None:
        check_writing(port.where, found.stored.record, context)
        if found.stored.generation == context.generation:
            return Version(found.stored.version, context.token or "-")
    state = "missing" if found is None else f"of generation {found.stored.generation}"
    raise StaleWriterError(
        f"{port.where} was not opened by generation {context.generation}",
        step=context.step_id,
        epoch=context.epoch,
        why=f"the record {port.name} is {state}:"
        " the target was emptied, replaced or restored since the epoch began, or the job of this task has ended",
        do="nothing, if the job has ended; otherwise make sure that driver and tasks reach the same target, and restart"
        " the query",
    )


def _parsed(name: str, text: str) -> VersionRecord:
    try:
        return VersionRecord.model_validate_json(text)
    except ValidationError as error:
        raise unreadable_record(name, "it is not a record of this release") from error
