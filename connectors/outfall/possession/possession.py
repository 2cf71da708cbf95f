"""How a step takes possession of a target and keeps it: one state machine for all kinds of targets.

```
check     before BEGIN     compare the record with the log · compare the data · in the first epoch: what else is there?
open      after BEGIN      in the first epoch: look for others · delete what is replaced · create the record
                           then: compare again · write the generation and token of this BEGIN
advance   before commit    compare again · write the epoch that is published
still     after commit     compare again
withdraw                   remove the record
```

A kind of target implements a port: where the record is, and how it is replaced atomically. A `TargetPort` only
compares, because the commit of an epoch writes the record too. A `RecordPort` also writes each BEGIN. An `EpochPort`
also writes each epoch before it is published. The comparison itself is `outfall.target_record`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import ConfigurationError, TargetError, TargetLostError, TargetNotEmptyError
from outfall.possession.record import missing_record, no_record, overwritten
from outfall.target_record import TargetRecord, check_opening, check_publishing, check_record, is_ahead
from outfall.trace_points import reached


class StoredRecord(Protocol):
    """The record of a step in the form in which a target stores it. Immutable."""

    @property
    def record(self) -> TargetRecord:
        """What is compared with the log."""

    @property
    def ready(self) -> bool:
        """Whether the step has taken possession. Until then, the record only announces it to others."""


class OpenedRecord(StoredRecord, Protocol):
    """A record of the BEGIN that opened the target last."""

    def opened_by(self, context: TargetContext[Any]) -> Self:
        """Return the record after a BEGIN has opened the target."""


class PublishedRecord(OpenedRecord, Protocol):
    """A record that also has the newest epoch."""

    def advanced(self, epoch: int) -> Self:
        """Return the record after an epoch is published."""


R = TypeVar("R", bound=StoredRecord)
O = TypeVar("O", bound=OpenedRecord)  # noqa: E741 - O for opened
P = TypeVar("P", bound=PublishedRecord)


@dataclass(frozen=True)
class FoundRecord(Generic[R]):
    """A record, and its version: equal to another one exactly if the record was not written in between."""

    stored: R
    version: Any = None


Change = Callable[[FoundRecord[R]], R]
"""Returns the record that replaces the one that was found. Raises an error if this driver may not replace it."""


class TargetPort(ABC, Generic[R]):
    """One target of one step: what it knows of the step, and what else it contains."""

    where: str
    """The target, for errors."""
    ahead: str
    """The remedy for a target that is ahead of the recovery data."""
    rewinds: bool = False
    """Whether later data of a target that is ahead of the recovery data is rolled back."""
    locks: bool = False
    """Whether no other step can take possession at the same moment. Otherwise a step announces itself by its record
    before it looks for others: of two that come at one moment, at least the later one finds the other."""

    @abstractmethod
    def read(self) -> FoundRecord[R] | None:
        """Return the record of the step; `None` if there is none. Raises `TargetLostError` if it cannot be read."""

    def written(self, context: TargetContext[Any]) -> int | None:
        """Return an epoch of the log that is in the target, so that the record must exist; `None` if there is none."""
        return context.completed

    @abstractmethod
    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        """Return the error of a record that must exist, because an epoch is in the target."""

    def records(
        self, found: FoundRecord[R], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        """Return what is compared with the log. More than one if several drivers have written concurrently."""
        return (found.stored.record,)

    def check_data(self, found: FoundRecord[R] | None, context: TargetContext[Any]) -> None:
        """Compare the data of the step with the log, beyond its record. Called unless no BEGIN was ever written.

        Raises `TargetLostError` or `TargetAheadError` if they do not match.
        """

    @abstractmethod
    def check_existing(self, context: TargetContext[Any]) -> None:
        """Reject what the target contains in the first epoch, unless `on_existing` allows it. Changes nothing.

        `TargetNotEmptyError` names what was found.
        """


class RecordPort(TargetPort[O]):
    """A target in which a step writes its record after each BEGIN, and not only together with the rows of an epoch."""

    name: str
    """The record, for errors."""
    overwrites: bool = False
    """Whether the first epoch deletes the existing data."""

    @abstractmethod
    def open(self, context: TargetContext[Any], change: Change[O]) -> O | None:
        """Replace the record by that of a BEGIN, atomically and durably.

        If another driver was faster, `change` is called again. Returns the new record; `None` if there is none.
        """

    @abstractmethod
    def create(self, context: TargetContext[Any]) -> None:
        """Create the record of a step that has none. Durable on return.

        Without a lock it is not `ready` if existing data must be deleted first.
        """

    def remove(self) -> None:
        """Remove the record durably, if there is one. Called for a target without a lock."""
        raise NotImplementedError

    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        return missing_record(self.where, self.name, epoch, step=context.step_id, epoch=context.epoch)

    def opening(self) -> AbstractContextManager[object]:
        """Return the lock under which a step takes possession, if there is one."""
        return nullcontext()

    def delete_existing(self, context: TargetContext[Any]) -> None:
        """Delete the existing data, and stop the queries that wrote it. Data of this step is kept."""

    def nobody_publishing(self) -> AbstractContextManager[object]:
        """Return the lock that waits for publishing drivers, if there is one."""
        return nullcontext()

    def roll_back(self, found: FoundRecord[O], context: TargetContext[Any]) -> O:
        """Remove all data later than the last completed epoch, and return the record without it."""
        raise NotImplementedError


class EpochPort(RecordPort[P]):
    """A target whose record gets the epoch before the epoch is published, by `advance`."""

    @abstractmethod
    def update(self, change: Change[P]) -> P | None:
        """Replace the record, like `open`."""

    def check_publishing(self, found: FoundRecord[P], context: CommitterInitContext) -> None:
        """Raise `FencedError` if another driver has opened the target since, so that this one must not publish."""
        for record in self.records(found, context):
            check_publishing(self.where, record, context)


def check(port: TargetPort[R], context: TargetContext[Any]) -> FoundRecord[R] | None:
    """Compare a target with the log. Changes nothing. Called by `SupportsTarget.check_target`.

    Returns the record if the target is ahead of the log and may be rolled back (`open_target` gets it), otherwise
    `None`. Raises `TargetNotEmptyError` if the target contains data in the first epoch that `on_existing` does not
    allow, `TargetLostError` if it is behind the log or its record is missing, `TargetAheadError` if it is ahead of the
    log, and `FencedError` if the driver of another copy of the log has opened it.
    """
    found = port.read() if context.incarnation else None
    ahead = False
    if found is not None:
        records = port.records(found, context)
        ahead = port.rewinds and any(_is_unknown(record, context) for record in records)
        for record in () if ahead else records:
            check_record(port.where, record, context, ahead=port.ahead)
    else:
        epoch = port.written(context)
        if epoch is not None:
            raise port.missing(epoch, context)
    if context.incarnation:
        port.check_data(found, context)
    # Without a lock also if the record exists: the driver that wrote it may have died before this check.
    settled = found is not None and found.stored.ready and port.locks
    if context.completed is None and not settled:
        port.check_existing(context)
    return found if ahead else None


def find_moved(port: TargetPort[R], context: TargetContext[Any]) -> TargetRecord:
    """Return the record of a step in a target that has another name than recorded. Changes nothing.

    Called by `SupportsTarget.find_moved`. Raises `TargetLostError` if the target has no record of the step or an older
    one, and `FencedError` if a BEGIN that is not in the log has opened it.
    """
    found = port.read()
    if found is None:
        raise no_record(port.where, context)
    records = port.records(found, context)
    for record in records:
        check_opening(port.where, record, context)
    return records[-1]


def check_same_name(now: str, recorded: str, sink: str) -> None:
    """Reject a target whose own name differs from the recorded one, and not only its address."""
    if now != recorded:
        raise ConfigurationError(
            f"{sink} writes to {now!r} now, and {recorded!r} is recorded",
            why="a target that has moved keeps its own name, and only its address changes",
            do="restore the earlier name, or start with a new checkpoint or another step_id",
        )


def open_target(port: RecordPort[O], context: TargetContext[Any], ahead: FoundRecord[O] | None) -> None:
    """Take possession of a target on the first run, and write this BEGIN into its record. Called after each BEGIN.

    `ahead` is what `check` returned. The target is rolled back only if no other driver has written its record since:
    BEGIN was appended directly after the entries that were read before the check, so any difference is the work of
    another driver. Raises `TargetNotEmptyError` if another query has taken possession since the check,
    `TargetLostError` if the record is missing, and `FencedError` if another driver has opened the target since then.
    """

    def opened(found: FoundRecord[O]) -> O:
        if ahead is not None and found == ahead:
            return port.roll_back(found, context)
        check_opened(port, found, context)
        return found.stored.opened_by(context)

    if context.completed is None:
        found = port.read()
        if found is None or not found.stored.ready:
            _open_first(port, context)
    # A publishing driver has already checked the record. Wait for it, or its data would appear after the roll-back.
    with nullcontext() if ahead is None else port.nobody_publishing():
        if port.open(context, opened) is None:
            raise removed(port, context)


def _open_first(port: RecordPort[O], context: TargetContext[Any]) -> None:
    with port.opening():
        found = port.read()
        if found is not None and found.stored.ready:
            return
        if not port.locks:
            if found is None:
                port.create(context)
                found = port.read()
            if found is None:
                raise removed(port, context)
            check_opened(port, found, context)
            reached("target: announced")
        try:
            port.check_existing(context)
            if port.overwrites:
                port.delete_existing(context)
        except TargetNotEmptyError:
            if not port.locks:
                port.remove()
            raise
        if port.locks:
            port.create(context)


def advance(port: EpochPort[P], context: CommitterInitContext) -> P:
    """Write, before an epoch is published, that it is being published. Returns the record.

    Durable: a record without an epoch that the log has as completed counts as an older copy. Raises `TargetLostError`
    if the record is missing, and `FencedError` if another driver has opened the target since. Nothing may be published
    then.
    """

    def advanced(found: FoundRecord[P]) -> P:
        port.check_publishing(found, context)
        return found.stored.advanced(context.epoch)

    after = port.update(advanced)
    if after is None:
        raise overwritten(port.name)
    return after


def check_still(port: EpochPort[P], context: CommitterInitContext) -> None:
    """Check that a target still belongs to this driver, as `advance` does, while or after an epoch is published."""
    found = port.read()
    if found is None:
        raise overwritten(port.name)
    port.check_publishing(found, context)


def removed(port: RecordPort[O], context: TargetContext[Any]) -> TargetError:
    """Return the error of a record that disappeared while its step opens the target."""
    if context.completed is not None:
        return overwritten(port.name)
    return TargetNotEmptyError(
        f"{port.where} was opened by another query at the same moment",
        step=context.step_id,
        why=f'the record {port.name} disappeared: a query with on_existing="overwrite" has removed it, and this query'
        " has deleted nothing since",
        do="make sure that only one query writes there, or give each query its own target; then start that query again",
    )


def check_opened(port: TargetPort[R], found: FoundRecord[R], context: TargetContext[Any]) -> None:
    """Raise `FencedError` if another driver has opened a target since `check`. Called under the lock of the record."""
    for record in port.records(found, context):
        check_opening(port.where, record, context)


def _is_unknown(found: TargetRecord, context: TargetContext[Any]) -> bool:
    """Whether the log does not have what is in a record.

    A target that was opened by a BEGIN missing from the log counts as ahead, even if its number is low: each attempt to
    roll back is a BEGIN too, so the number may have caught up.
    """
    if is_ahead(found, context):
        return True
    recent = found.generation >= min(context.begun, default=0)
    return recent and found.token is not None and found.token != context.begun.get(found.generation)
