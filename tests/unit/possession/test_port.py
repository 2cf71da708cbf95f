"""The state machine of taking possession, on a record in memory that another driver may change in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import FencedError, TargetAheadError, TargetError, TargetLostError, TargetNotEmptyError
from outfall.possession.possession import (
    Change,
    EpochPort,
    FoundRecord,
    advance,
    check,
    check_still,
    open_target,
)
from outfall.target_record import TargetRecord


@dataclass(frozen=True)
class Record:
    generation: int
    token: str | None = None
    epoch: int | None = None
    ready: bool = True

    @property
    def record(self) -> TargetRecord:
        return TargetRecord(self.generation, self.token, self.epoch)

    def opened_by(self, context: TargetContext[Any]) -> Record:
        return replace(self, generation=context.generation, token=context.token, ready=True)

    def advanced(self, epoch: int) -> Record:
        return replace(self, epoch=epoch)


class Port(EpochPort[Record]):
    """Notes what is called. `before` is called before each read, as by another driver."""

    where, name, ahead = "the target", "its record", "restore the log"

    def __init__(self, stored: Record | None = None, *, locks: bool = False, rewinds: bool = False) -> None:
        self.stored, self.locks, self.rewinds = stored, locks, rewinds
        self.calls: list[str] = []
        self.holds_others = False
        self.made = Record(0, ready=False) if not locks else Record(0)
        self.before: list[Callable[[], None]] = []

    def read(self) -> FoundRecord[Record] | None:
        if self.before:
            self.before.pop(0)()
        return None if self.stored is None else FoundRecord(self.stored, id(self.stored))

    def open(self, context: TargetContext[Any], change: Change[Record]) -> Record | None:
        self.calls.append("open")
        return self.update(change)

    def update(self, change: Change[Record]) -> Record | None:
        found = self.read()
        if found is not None:
            self.stored = change(found)
        return self.stored

    def create(self, context: TargetContext[Any]) -> None:
        self.calls.append("create")
        self.stored = self.made

    def remove(self) -> None:
        self.calls.append("remove")
        self.stored = None

    def check_data(self, found: FoundRecord[Record] | None, context: TargetContext[Any]) -> None:
        self.calls.append("check data")

    def check_existing(self, context: TargetContext[Any]) -> None:
        self.calls.append("check existing")
        if self.holds_others:
            raise TargetNotEmptyError("others")

    def delete_existing(self, context: TargetContext[Any]) -> None:
        self.calls.append("delete existing")

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        self.calls.append(name)
        yield
        self.calls.append(f"{name} is over")

    def opening(self) -> AbstractContextManager[object]:
        return self._locked("opening")

    def nobody_publishing(self) -> AbstractContextManager[object]:
        return self._locked("nobody publishing")

    def roll_back(self, found: FoundRecord[Record], context: TargetContext[Any]) -> Record:
        self.calls.append("roll back")
        return Record(context.generation, context.token, context.completed)


BEGUN = {5: "five", 6: "six"}


def before(completed: int | None = 3, **given: Any) -> TargetContext[Any]:
    """The context of `check`, in a log whose last BEGIN is 6."""
    whole: dict[str, Any] = {"begun": BEGUN, "last_generation": 6, "first_contact": False, "states": {}} | given
    return TargetContext(step_id="sink", incarnation="ours", epoch=4, completed=completed, **whole)


def after(completed: int | None = 3, **given: Any) -> TargetContext[Any]:
    """The context of `open_target`."""
    return replace(before(completed, **given), generation=7, token="seven", begun=BEGUN | {7: "seven"})


def committing(**given: Any) -> CommitterInitContext:
    return CommitterInitContext("sink", "ours", 7, 4, token="seven", begun=BEGUN | {7: "seven"}, **given)


OPENED = Record(6, "six", 3)


# check


def test_a_record_of_the_log_is_accepted_and_its_data_is_compared() -> None:
    port = Port(OPENED)
    assert check(port, before()) is None
    assert port.calls == ["check data"]


def test_before_the_first_begin_there_is_no_record_to_read() -> None:
    port = Port(Record(9, "theirs", 9))
    assert check(port, replace(before(None), incarnation="")) is None
    assert port.calls == ["check existing"]


def test_a_record_that_must_exist_is_missed() -> None:
    with pytest.raises(TargetLostError, match="its record"):
        check(Port(), before(3))
    port = Port()
    assert check(port, before(None)) is None
    assert port.calls == ["check data", "check existing"]


@pytest.mark.parametrize(("ready", "locks", "looks"), [(True, True, False), (True, False, True), (False, True, True)])
def test_others_are_looked_for_until_the_target_is_surely_ours(ready: bool, locks: bool, looks: bool) -> None:
    port = Port(Record(6, "six", ready=ready), locks=locks)
    check(port, before(None))
    assert ("check existing" in port.calls) == looks
    port.calls.clear()
    check(port, before(3))
    assert "check existing" not in port.calls


UNKNOWN = [Record(7, "other", 3), Record(6, "six", 4), Record(6, "other", 3), Record(5, "other", 3)]
KNOWN = [Record(6, "six", 3), Record(5, "five", 3), Record(6, None, 3), Record(4, "forgotten", 3)]


@pytest.mark.parametrize("stored", UNKNOWN)
def test_what_the_log_does_not_know_is_returned_if_it_may_be_rolled_back(stored: Record) -> None:
    port = Port(stored, rewinds=True)
    found = check(port, before())
    assert found is not None
    assert found.stored is stored
    with pytest.raises((TargetAheadError, FencedError)):
        check(Port(stored), before())


@pytest.mark.parametrize("stored", KNOWN)
def test_what_the_log_knows_is_not_rolled_back(stored: Record) -> None:
    try:
        assert check(Port(stored, rewinds=True), before()) is None
    except TargetLostError:
        assert stored.generation < min(BEGUN)  # an older copy of the target


def test_a_log_without_begins_knows_no_record() -> None:
    assert check(Port(Record(0, "other"), rewinds=True), before(None, begun={}, last_generation=0)) is not None


# open_target


@pytest.mark.parametrize("locks", [False, True])
def test_the_first_epoch_announces_or_locks_before_it_looks(locks: bool) -> None:
    port = Port(locks=locks)
    open_target(port, after(None), None)
    first = ["create", "check existing"] if not locks else ["check existing", "create"]
    assert port.calls == ["opening", *first, "opening is over", "open"]
    assert port.stored == Record(7, "seven")


@pytest.mark.parametrize("locks", [False, True])
def test_the_first_epoch_deletes_what_is_there_if_told(locks: bool) -> None:
    port = Port(locks=locks)
    port.overwrites = True
    open_target(port, after(None), None)
    assert port.calls.index("delete existing") == port.calls.index("check existing") + 1


@pytest.mark.parametrize("locks", [False, True])
def test_the_announcement_of_a_step_that_is_refused_is_withdrawn(locks: bool) -> None:
    port = Port(locks=locks)
    port.holds_others = True
    with pytest.raises(TargetNotEmptyError, match="others"):
        open_target(port, after(None), None)
    assert ("remove" in port.calls) != locks
    assert "open" not in port.calls
    assert port.stored is None


def test_a_step_that_died_before_it_was_ready_goes_on() -> None:
    port = Port(Record(6, "six", ready=False))
    open_target(port, after(None), None)
    assert port.calls == ["opening", "check existing", "opening is over", "open"]
    assert port.stored == Record(7, "seven")


def test_a_record_that_is_ready_is_not_opened_first_again() -> None:
    port = Port(Record(6, "six"))
    open_target(port, after(None), None)
    assert port.calls == ["open"]
    # Nor if another driver of the step was faster under the lock.
    port = Port()
    port.before = [lambda: None, lambda: setattr(port, "stored", Record(6, "six"))]
    open_target(port, after(None), None)
    assert port.calls == ["opening", "opening is over", "open"]


def test_an_announcement_of_another_driver_is_not_ours() -> None:
    port = Port(Record(8, "eight", ready=False))
    with pytest.raises(FencedError):
        open_target(port, after(None), None)
    assert "check existing" not in port.calls


def test_a_record_that_disappears_while_it_is_opened_is_somebody_elses_doing() -> None:
    for locks, gone_at in ((False, 2), (False, 3), (True, 2)):
        port = Port(locks=locks)

        def forget(port: Port = port) -> None:
            port.stored = None

        port.before = [*[lambda: None] * gone_at, forget]
        with pytest.raises(TargetNotEmptyError, match="was opened by another query at the same moment"):
            open_target(port, after(None), None)
    # Later it is lost, and said so.
    with pytest.raises(TargetError) as caught:
        open_target(Port(), after(3), None)
    assert not isinstance(caught.value, TargetNotEmptyError)


def test_later_epochs_compare_again_and_write_their_begin() -> None:
    port = Port(OPENED)
    open_target(port, after(), None)
    assert port.stored == Record(7, "seven", 3)
    assert port.calls == ["open"]
    for stored in (Record(8, "eight", 3), Record(7, "other", 3)):
        with pytest.raises(FencedError):
            open_target(Port(stored), after(), None)


def test_a_target_that_is_ahead_is_rolled_back_once_nobody_publishes() -> None:
    port = Port(Record(9, "nine", 8), rewinds=True)
    ahead = port.read()
    open_target(port, after(), ahead)
    assert port.calls == ["nobody publishing", "open", "roll back", "nobody publishing is over"]
    assert port.stored == Record(7, "seven", 3)


def test_a_target_that_somebody_has_opened_since_it_was_found_ahead_is_not_rolled_back() -> None:
    port = Port(Record(9, "nine", 8), rewinds=True)
    ahead = port.read()
    port.stored = Record(9, "nine", 8)  # written again: another version
    with pytest.raises(FencedError):
        open_target(port, after(), ahead)
    assert "roll back" not in port.calls


def test_a_port_without_a_lock_or_a_way_back_says_so() -> None:
    port = Port(OPENED)
    found = port.read()
    assert found is not None
    with pytest.raises(NotImplementedError):
        EpochPort.remove(port)
    with pytest.raises(NotImplementedError):
        EpochPort.roll_back(port, found, after())


# advance, check_still


def test_an_epoch_is_written_before_it_is_published_by_the_driver_that_has_the_target() -> None:
    port = Port(Record(7, "seven", 3))
    assert advance(port, committing()) == Record(7, "seven", 4)
    assert port.stored == Record(7, "seven", 4)
    check_still(port, committing())
    for stored in (Record(8, "eight", 3), Record(7, "other", 3)):
        port = Port(stored)
        for step in (advance, check_still):
            with pytest.raises(FencedError):
                step(port, committing())
        assert port.stored == stored
    with pytest.raises(TargetLostError):
        advance(Port(Record(7, "seven", 2)), committing(published=3))


def test_without_its_record_nothing_is_published() -> None:
    for step in (advance, check_still):
        with pytest.raises(TargetError, match="its record"):
            step(Port(), committing())
