"""What a log must be like to be read on, and what of it is compared with the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from outfall.capability_checks import ResolvedSink
from outfall.errors import FencedError, ForeignRecordsError, RecordError
from outfall.protocol.journal import Journal, JournalView
from outfall.protocol.validation import check_identity, earlier_epoch
from outfall.recovery.entries import Begin, ChildRecord, Committing, encode_entry
from outfall.recovery.log import RecoveryLog
from outfall.testing import FakeClock, MemoryRecoveryConfig

OURS, OTHERS = "a" * 16, "b" * 16


def begin(incarnation: str = OURS, **given: Any) -> Begin:
    whole: dict[str, Any] = {"step": "sink", "epoch": 0, "outfall": "1", "sink": "S", "target": "t", "query_id": "q"}
    return Begin(incarnation=incarnation, driver="d", **(whole | given))


def journal(log: RecoveryLog) -> Journal:
    return Journal(log, "sink", FakeClock())


def test_a_view_goes_on_only_with_the_next_entry_of_its_incarnation() -> None:
    view = JournalView().after(4, begin())
    assert view.after(5, begin()).last == 5
    for number in (4, 6, 7):
        with pytest.raises(RecordError, match=f"recovery entry {number - 1} is missing"):
            view.after(number, begin())
    with pytest.raises(RecordError, match=f"entry 5 is of incarnation {OTHERS}, others are of {OURS}"):
        view.after(5, begin(OTHERS))


def test_a_log_of_two_incarnations_is_refused() -> None:
    log = MemoryRecoveryConfig().open("sink")
    for number, incarnation in enumerate((OURS, OTHERS)):
        log.append(encode_entry(begin(incarnation)), after=number)
    with pytest.raises(RecordError, match="recovery directories were mixed"):
        journal(log).read()
    with pytest.raises(RecordError, match="recovery directories were mixed"):
        journal(log).read_all()


def test_a_new_entry_of_another_incarnation_is_refused_while_it_is_appended() -> None:
    log = MemoryRecoveryConfig().open("sink")
    ours = journal(log)
    assert ours.append(begin()) == 1
    with pytest.raises(RecordError, match="recovery directories were mixed"):
        ours.append(Committing(step="sink", incarnation=OTHERS, epoch=0, generation=1))


def test_entries_are_in_the_order_of_the_log_with_those_appended_since() -> None:
    log = MemoryRecoveryConfig().open("sink")
    first = journal(log)
    first.append(begin(epoch=0))
    reader = journal(log)
    reader.read()
    reader.append(begin(epoch=1))
    assert [cast(Begin, entry).epoch for entry in reader.entries] == [0, 1]
    assert not reader.unclear
    again = Journal(log, "sink", FakeClock(), reader.known)
    assert again.entries == reader.entries


# The sink that the log is of.


@dataclass
class Kind:
    """What is compared of a sink."""

    of: str = "S"
    where: str | None = "t"
    inner: Mapping[str, Kind] = field(default_factory=dict)
    name: str = "Composite"

    def kind(self) -> str:
        return self.of

    def target(self) -> str | None:
        return self.where

    def children(self) -> Mapping[str, Kind]:
        return self.inner


def check(sink: Kind, begin: Begin | None, query_id: str | None = "q", **view: Any) -> None:
    known = JournalView(begin=begin, query_id=None if begin is None else begin.query_id)
    check_identity("sink", cast(ResolvedSink, sink), replace(known, **view), query_id)


def test_a_log_that_was_moved_names_where_the_step_continues() -> None:
    for entry in (begin(), None):
        with pytest.raises(FencedError, match="was moved to postgres://db/log") as caught:
            check(Kind(), entry, moved_to="postgres://db/log")
        assert caught.value.step == "sink"


def test_a_log_of_another_sink_or_target_is_refused() -> None:
    check(Kind(), begin())
    check(Kind("any"), None)
    for sink, text in ((Kind("Other"), "of the sink S, not of Other"), (Kind(where="u"), "of the target t, not of u")):
        with pytest.raises(ForeignRecordsError, match=text):
            check(sink, begin())
    with pytest.raises(ForeignRecordsError, match="query q"):
        check(Kind(), begin(), "another")


def test_the_sinks_in_a_composite_sink_keep_name_kind_and_target() -> None:
    recorded = {name: ChildRecord(sink="S", target=name, since=0) for name in ("a", "b")}
    entry = begin(children=recorded, target="a and b")
    fine = {name: Kind(where=name) for name in "ab"}
    check(Kind(inner=fine), entry)  # the target of the whole is made of theirs, and not compared
    check(Kind(inner=fine | {"c": Kind(where="c")}), entry)
    for changed, text in (
        ({"a": fine["a"]}, r"not the recorded ones: b \(S, target b\) is missing$"),
        (fine | {"a": Kind("Other", "a")}, "a was S, target a, and is Other, target a"),
        (fine | {"a": Kind("S", "x")}, "a was S, target a, and is S, target x"),
        ({"a": Kind("S", "x")}, r"a was S, target a, and is S, target x; b \(S, target b\) is missing"),
        (fine | {"a": Kind("Other", "x", {"inner": Kind()})}, "a was S, target a, and is Other"),
    ):
        with pytest.raises(ForeignRecordsError) as caught:
            check(Kind(inner=changed), entry)
        assert caught.match(text.removesuffix("$"))
        assert ("; " in caught.value.what) == ("; " in text)
    check(Kind(inner=fine | {"a": Kind("S", "x", {"inner": Kind()})}), entry)  # whose own are recorded too


@pytest.mark.parametrize(("given", "found", "last"), [({}, 3, 5), ({"drains": 2}, 1, 3)])
def test_an_earlier_epoch_of_a_job_is_named_without_its_drains(given: dict[str, int], found: int, last: int) -> None:
    text = str(earlier_epoch("sink", 3, completed=5, **given))
    assert f"the job has epoch {found}" in text
    assert f"poch {last} is the last completed one" in text
