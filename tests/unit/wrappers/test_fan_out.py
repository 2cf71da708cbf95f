"""Several sinks as one: each has its share of one record, and what happens to one does not happen to another."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Guarantee,
    PartSeal,
    SealContext,
    SupportsCommitter,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
    SupportsTarget,
    SupportsWriterState,
    TargetContext,
)
from outfall.capability_checks import (
    SupportsChildren,
    SupportsNamedStates,
    capabilities_of,
    check_sink,
    resolve,
)
from outfall.errors import (
    CapabilityError,
    CommitError,
    ConfigurationError,
    ForeignRecordsError,
    LostCommittableError,
    OutfallError,
    PartsChangedError,
    TargetNotEmptyError,
    TransientError,
)
from outfall.file import FileSink
from outfall.protocol.step import EpochOptions
from outfall.recovery.entries import Committed, decode_entry
from outfall.recovery.history import history
from outfall.sinks import DynamicSink, FixedPartitionedSink, StatefulSinkPartition, StatelessSinkPartition
from outfall.testing import ByReference, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import FanOutSink
from outfall.wrappers.composite_committer import ChildValue, CompositeCommitter
from tests.unit.support.fanned import NamedBundlingSink, NamedStagingSink
from tests.unit.support.shelf import PartFile, Shelf, ShelfSink, values_on
from tests.unit.support.warehouse import HoldingSink, PlainSink, Warehouse, rows_of
from tests.unit.support.watched import Sorting, Watched

ROWS = [[1, 2], [3]]


def staging(name: str = "warehouse") -> NamedStagingSink:
    return NamedStagingSink(Warehouse(), name)


class Slotted(FixedPartitionedSink[Any, int]):
    """Parts, the default part_fn, and what it was given in memory."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts
        self.rows: dict[str, list[Any]] = {part: [] for part in parts}

    def list_parts(self) -> list[str]:
        return list(self.parts)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        rows = self.rows[for_part]
        del rows[resume_state or 0 :]
        return _Slot(rows)


class _Slot(StatefulSinkPartition[Any, int]):
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def write_batch(self, values: list[Any]) -> None:
        self._rows.extend(values)

    def snapshot(self) -> int:
        return len(self._rows)


class NamedShelf(ShelfSink):
    part_fn = FixedPartitionedSink.part_fn

    def target(self) -> str:
        return f"shelf of {', '.join(self.parts)}"


class Picky(DynamicSink[Any], SupportsTarget[Any]):
    def target(self) -> str:
        return "nowhere"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        raise NotImplementedError

    def check_schema(self, schema: pa.Schema) -> None:
        raise ConfigurationError(f"no column of {schema.names} will do")


OPTIONAL = {
    SupportsCommitter, SupportsPreCommitTopology, SupportsPostCommitTopology, SupportsPreWriteTopology,
    SupportsSeal, SupportsWriterState, SupportsNamedStates,
}  # fmt: skip


@pytest.mark.parametrize(
    ("children", "expected"),
    [
        ([PlainSink()], set()),
        ([PlainSink(), staging()], {SupportsCommitter}),
        (
            [NamedBundlingSink(Warehouse()), staging("other")],
            {SupportsCommitter, SupportsPreCommitTopology, SupportsPostCommitTopology},
        ),
        ([HoldingSink(Warehouse()), PlainSink()], {SupportsCommitter, SupportsWriterState}),
        ([PlainSink(), ShelfSink(Shelf())], {SupportsSeal, SupportsNamedStates}),
        ([HoldingSink(Warehouse()), Slotted("a")], {SupportsCommitter, SupportsNamedStates}),
        ([Sorting(), Picky()], {SupportsPreWriteTopology}),
    ],
)
def test_a_fan_out_can_do_what_its_sinks_can_and_no_more(children: Sequence[Any], expected: set[type]) -> None:
    sink = FanOutSink(children)
    check_sink(sink)
    assert {capability for capability in OPTIONAL if capability in capabilities_of(sink)} == expected
    assert SupportsChildren in capabilities_of(sink)
    needed = {name for capability in capabilities_of(sink) for name in getattr(capability, "__abstractmethods__", ())}
    assert {name for name in needed if not callable(getattr(sink, name))} == set()
    assert resolve(sink).fixed == any(resolve(child).fixed for child in children) != resolve(sink).dynamic


class Elsewhere(Warehouse, ByReference):
    """A target that copies of a sink find."""


@pytest.mark.parametrize("again", [copy.copy, lambda sink: pickle.loads(pickle.dumps(sink))], ids=["copied", "sent"])
def test_a_copy_has_the_shape_of_the_original(again: Any) -> None:
    sink = FanOutSink([NamedStagingSink(Elsewhere())])
    same = again(sink)
    assert type(same) is type(sink)
    assert type(same).__name__ == "FanOutSink"
    assert same.children().keys() == sink.children().keys()


def test_rows_reach_every_sink_and_are_counted_under_its_name() -> None:
    first, second, plain = staging("first"), NamedBundlingSink(Warehouse(), "second"), PlainSink()
    driver = LocalDriver(FanOutSink(a=first, b=second, c=plain), MemoryRecoveryConfig())
    counts = driver.run_epoch(0, ROWS).counts
    assert rows_of(first.warehouse) == rows_of(second.warehouse) == plain.rows == [1, 2, 3]
    assert (counts["rows"], counts["a.rows"], counts["b.rows"], counts["c.rows"]) == (3, 3, 3, 3)
    assert second.warehouse.followed, "the topology after the commit saw what was committed"


def entries(recovery: MemoryRecoveryConfig) -> list[Any]:
    return [decode_entry(raw, "sink") for raw in recovery.open("sink").read()]


def test_a_sink_that_has_committed_is_not_offered_its_rows_again_when_another_one_failed() -> None:
    first, second, recovery = staging("first"), staging("second"), MemoryRecoveryConfig()

    def driver() -> LocalDriver:
        return LocalDriver(FanOutSink(first=first, second=second), recovery)

    def away() -> None:
        raise ConnectionError("second is away")

    second.before_commit = away
    with pytest.raises(CommitError, match="second is away") as failed:
        driver().run_epoch(0, ROWS)
    assert "In the sink 'second'." in failed.value.__notes__
    assert [entry.child for entry in entries(recovery) if isinstance(entry, Committed)] == ["first"]
    second.before_commit = lambda: None
    assert driver().run_epoch(0, ROWS).skipped
    assert rows_of(first.warehouse) == rows_of(second.warehouse) == [1, 2, 3]
    assert len(first.warehouse.offers) == 1


def test_every_sink_is_tried_and_all_errors_are_raised_together() -> None:
    sinks = {name: staging(name) for name in ("a", "b", "c")}

    def away() -> None:
        raise ConnectionError("gone fishing")

    sinks["a"].before_commit = sinks["c"].before_commit = away
    with pytest.raises(TransientError, match="2 of 3 sinks failed to commit") as failed:
        LocalDriver(FanOutSink(**sinks), MemoryRecoveryConfig()).run_epoch(0, ROWS)
    assert "a: " in str(failed.value)
    assert "c: " in str(failed.value)
    assert isinstance(failed.value.__cause__, ExceptionGroup)
    assert rows_of(sinks["b"].warehouse) == [1, 2, 3]


class HalfCommitter(Committer[int]):
    """Commits what is even, and raises at what is odd."""

    def commit(self, requests: Sequence[CommitRequest[int]]) -> None:
        for request in requests:
            if request.committable % 2:
                raise ConnectionError("gone fishing")
            request.signal_already_committed()


class Half(PlainSink):
    def create_committer(self, context: CommitterInitContext) -> HalfCommitter:
        return HalfCommitter()


def test_what_is_said_of_a_committable_before_an_error_is_known_and_other_sinks_commit_all_the_same() -> None:
    committer = CompositeCommitter({"a": Half(), "b": Half()}, CommitterInitContext("sink", "aa", 1, 0))
    requests = [CommitRequest(ChildValue(name, number)) for name, number in (("a", 0), ("a", 1), ("b", 2))]
    with pytest.raises(ConnectionError):
        committer.commit(requests)
    assert [request.outcome.kind for request in requests] == ["already committed", "unsignalled", "already committed"]


@pytest.mark.parametrize("point", ["after COMMITTED", "after COMMITTED#2", "before commit#2", "after commit"])
def test_a_driver_that_dies_between_the_commits_of_two_sinks_leaves_each_with_its_rows_once(point: str) -> None:
    first, second, recovery = staging("first"), staging("second"), MemoryRecoveryConfig()
    sink = FanOutSink([first, second])
    with crash_at(point):
        LocalDriver(sink, recovery).run_epoch(0, ROWS)
    assert LocalDriver(sink, recovery).run_epoch(0, ROWS).skipped
    assert rows_of(first.warehouse) == rows_of(second.warehouse) == [1, 2, 3]


def test_marks_do_not_crowd_out_what_is_kept_of_former_epochs() -> None:
    recovery = MemoryRecoveryConfig()
    driver = LocalDriver(FanOutSink([staging(f"{i}") for i in range(9)]), recovery)
    for epoch in range(5):
        driver.run_epoch(epoch, ROWS)
    assert [entry.epoch for entry in entries(recovery) if isinstance(entry, Committed)] == [4] * 9
    assert [item.epoch for item in history(recovery)] == [0, 1, 2, 3, 4]


# Lost data.


def prepared(sinks: Mapping[str, NamedStagingSink]) -> tuple[FanOutSink, MemoryRecoveryConfig]:
    sink, recovery = FanOutSink(**sinks), MemoryRecoveryConfig()
    with crash_at("after COMMITTING"):
        LocalDriver(sink, recovery).run_epoch(0, ROWS)
    return sink, recovery


def test_an_epoch_that_lost_rows_of_one_sink_is_written_anew_while_no_sink_has_published() -> None:
    sinks = {"a": staging("a"), "b": staging("b")}
    for sink in sinks.values():
        sink.warehouse.ledger = True
    fan_out, recovery = prepared(sinks)
    sinks["a"].warehouse.staged.clear()
    assert not LocalDriver(fan_out, recovery).run_epoch(0, ROWS).skipped
    assert rows_of(sinks["a"].warehouse) == rows_of(sinks["b"].warehouse) == [1, 2, 3]


def test_rows_lost_by_one_sink_after_another_has_published_are_an_error_that_names_both() -> None:
    sinks = {"a": staging("a"), "b": staging("b")}
    sinks["b"].warehouse.ledger = True
    fan_out, recovery = prepared(sinks)
    sinks["b"].warehouse.staged.clear()
    with pytest.raises(LostCommittableError, match=r"lost: b: .*published: a: "):
        LocalDriver(fan_out, recovery).run_epoch(0, ROWS)
    assert rows_of(sinks["a"].warehouse) == [1, 2, 3]


# Other sinks after a restart.


def test_a_sink_that_is_added_starts_fresh_and_the_others_go_on() -> None:
    first, recovery = staging("first"), MemoryRecoveryConfig()
    LocalDriver(FanOutSink(first=first), recovery).run_epoch(0, ROWS)
    second = staging("second")
    LocalDriver(FanOutSink(second=second, first=first), recovery).run_epoch(1, ROWS)
    assert Counter(rows_of(first.warehouse)) == Counter([1, 2, 3] * 2)
    assert rows_of(second.warehouse) == [1, 2, 3]


def shelf_with(*parts: str, data: str | None = None) -> NamedShelf:
    return NamedShelf(Shelf({data: PartFile(["somebody's"])} if data else {}), parts)


def test_an_added_sink_refuses_a_target_that_holds_somebodys_data() -> None:
    a, recovery = shelf_with("a"), MemoryRecoveryConfig()
    LocalDriver(FanOutSink(a=a), recovery).run_epoch(0, [[("k", 1)]])
    with pytest.raises(TargetNotEmptyError) as refused:
        LocalDriver(FanOutSink(a=a, b=shelf_with("b", data="b")), recovery).run_epoch(1, [[("k", 2)]])
    assert refused.value.__notes__ == ["In the sink 'b'."]


def test_rows_of_a_lost_attempt_in_an_added_sink_are_cut_although_nobody_opens_their_part_again() -> None:
    keys = {0: "0", 1: "4"}
    first, second, recovery = shelf_with("a", "b"), shelf_with("c", "d"), MemoryRecoveryConfig()
    assert {first.part_fn(key) % 2 for key in keys.values()} == {0, 1}
    LocalDriver(FanOutSink([first]), recovery).run_epoch(0, [[("0", 1), ("4", 2)]])
    both = FanOutSink([first, second])
    with crash_at("after collect"):
        LocalDriver(both, recovery).run_epoch(1, [[("0", 3), ("4", 4)]])
    assert len(values_on(second.shelf)) == 2
    LocalDriver(both, recovery).run_epoch(1, [[("0", 3)]])
    assert values_on(second.shelf) == [3]
    assert Counter(values_on(first.shelf)) == Counter([1, 2, 3])


@pytest.mark.parametrize(
    ("later", "text"),
    [
        (lambda a, b: FanOutSink([a]), "1 .*target b.* is missing"),
        (lambda a, b: FanOutSink([b, a]), "0 was .*target a, and is .*target b"),
        (lambda a, b: FanOutSink([a, staging("c")]), "1 was .*target b"),
    ],
    ids=["removed", "reordered", "replaced"],
)
def test_sinks_that_are_removed_or_change_places_are_refused_by_name(later: Any, text: str) -> None:
    a, b, recovery = staging("a"), staging("b"), MemoryRecoveryConfig()
    LocalDriver(FanOutSink([a, b]), recovery).run_epoch(0, ROWS)
    with pytest.raises(ForeignRecordsError, match=text) as refused:
        LocalDriver(later(a, b), recovery).run_epoch(1, ROWS)
    assert "give each sink its earlier name or position" in str(refused.value)


def test_sinks_with_names_may_come_in_any_order() -> None:
    a, b, recovery = shelf_with("a"), shelf_with("b"), MemoryRecoveryConfig()
    LocalDriver(FanOutSink(a=a, b=b), recovery).run_epoch(0, [[("k", 1)]])
    LocalDriver(FanOutSink(b=b, a=a), recovery).run_epoch(1, [[("k", 2)]])
    assert values_on(a.shelf) == values_on(b.shelf) == [1, 2]


def test_parts_of_a_sink_that_are_gone_are_named_with_it() -> None:
    recovery = MemoryRecoveryConfig()
    LocalDriver(FanOutSink(slots=Slotted("a", "b")), recovery).run_epoch(0, [[("0", 1), ("4", 2)]])
    with pytest.raises(PartsChangedError, match="slots/b"):
        LocalDriver(FanOutSink(slots=Slotted("a")), recovery).run_epoch(1, [[("0", 1)]])


# Sinks with parts.


def test_parts_of_several_sinks_are_written_side_by_side_and_each_goes_on_from_its_own_state() -> None:
    first, second, recovery = Slotted("a", "b"), Slotted("x", "y"), MemoryRecoveryConfig()
    sink = FanOutSink(first=first, second=second)
    for epoch in range(2):
        LocalDriver(sink, recovery).run_epoch(epoch, [[("0", epoch), ("4", 10 + epoch)]])
    assert list(first.rows.values()) == list(second.rows.values())
    assert sorted(first.rows.values()) == [[0, 1], [10, 11]]


def test_a_sink_without_parts_has_a_writer_in_each_part_also_where_one_task_writes_several() -> None:
    slots, other, recovery = Slotted("a", "b", "c"), staging(), MemoryRecoveryConfig()
    driver = LocalDriver(FanOutSink(slots=slots, other=other), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    task = [(part, [index]) for index, part in enumerate(ticket.parts)]
    coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, task)])
    assert sorted(rows_of(other.warehouse)) == [0, 1, 2]
    assert len(other.warehouse.published) == 3


def test_a_sink_without_parts_keeps_its_state_with_the_part_that_it_is_written_beside() -> None:
    held, slots, recovery = HoldingSink(Warehouse()), Slotted("a", "b"), MemoryRecoveryConfig()
    sink = FanOutSink(held=held, slots=slots)
    LocalDriver(sink, recovery).run_epoch(0, [[("0", 1), ("4", 2)]])
    assert rows_of(held.warehouse) == []
    LocalDriver(sink, recovery).run_epoch(1, [[("0", 3), ("4", 4)]])
    assert sorted(rows_of(held.warehouse)) == [1, 2]


def test_a_part_fn_of_its_own_routes_where_one_sink_has_parts() -> None:
    shelf = ShelfSink(Shelf())
    LocalDriver(FanOutSink(shelf=shelf, plain=PlainSink()), MemoryRecoveryConfig()).run_epoch(0, [[("2", "row")]])
    assert shelf.shelf.files["c"].values == ["row"]


def test_numbers_of_parts_that_differ_are_refused_before_the_first_row() -> None:
    sink = FanOutSink(a=Slotted("a", "b"), b=Slotted("x", "y", "z"))
    with pytest.raises(CapabilityError, match="a 2, b 3"):
        LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[("0", 1)]])


@pytest.mark.parametrize(
    ("children", "text"),
    [
        ([Slotted("a"), ShelfSink(Shelf())], "its own part_fn"),
        ([Sorting(), Sorting()], "both change the DataFrame"),
        ([HoldingSink(Warehouse(), adopts=["other"])], "adopts states"),
        ([PlainSink(), object()], "the sink '1' of FanOutSink cannot be used"),
    ],
)
def test_sinks_that_do_not_go_together_are_refused_with_the_reason(children: Sequence[Any], text: str) -> None:
    with pytest.raises(CapabilityError, match=text):
        FanOutSink(children)


def test_no_sinks_and_two_ways_of_naming_them_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no sinks"):
        FanOutSink()
    with pytest.raises(ConfigurationError, match="name all of them"):
        FanOutSink([PlainSink()], b=PlainSink())


def test_a_sink_given_twice_is_refused() -> None:
    sink = PlainSink()
    with pytest.raises(ConfigurationError, match="more than once"):
        FanOutSink([sink, sink])


# Side by side.


def test_a_fan_out_is_shown_with_its_sinks() -> None:
    sink = FanOutSink(a=staging("here"), b=FanOutSink([PlainSink()]))
    assert repr(sink) == "FanOutSink(a=NamedStagingSink(here), b=FanOutSink(0=None))"


def test_the_guarantee_is_the_weakest_and_requirements_carry_names() -> None:
    sink = FanOutSink(a=staging(), b=Watched("b", []))
    assert resolve(FanOutSink([staging()])).guarantee() is Guarantee.EXACTLY_ONCE
    assert resolve(sink).guarantee() is Guarantee.AT_LEAST_ONCE, "without a writer context a declaration does not count"
    assert resolve(sink).requirements() == ("b: care",)


def test_every_sink_looks_at_the_columns_and_one_shapes_the_rows() -> None:
    sink: Any = FanOutSink(a=Picky(), b=Picky(), c=Sorting())
    with pytest.raises(ConfigurationError):
        FanOutSink(a=Picky(), c=Sorting()).check_schema(pa.schema([("x", pa.int8())]))
    with pytest.raises(OutfallError, match=r"a: .*b: "):
        sink.check_schema(pa.schema([("x", pa.int8())]))
    assert sink.add_pre_write_topology(["rows"]) == ["rows", "sorted"]


def test_writer_states_go_back_to_the_sink_they_came_from() -> None:
    held, other, recovery = HoldingSink(Warehouse()), staging("other"), MemoryRecoveryConfig()
    sink = FanOutSink(held=held, other=other)
    options = EpochOptions(worker_count=2)
    LocalDriver(sink, recovery, options=options).run_epoch(0, ROWS)
    assert rows_of(held.warehouse) == []
    LocalDriver(sink, recovery, options=options).run_epoch(1, [[], []])
    assert sorted(rows_of(held.warehouse)) == rows_of(other.warehouse) == [1, 2, 3]


def test_a_fan_out_of_fan_outs_keeps_every_share_apart() -> None:
    a, b, slots, recovery = staging("a"), staging("b"), Slotted("x", "y"), MemoryRecoveryConfig()
    sink = FanOutSink(inner=FanOutSink(a=a, slots=slots), b=b)
    for epoch in range(2):
        counts = LocalDriver(sink, recovery).run_epoch(epoch, [[("0", epoch), ("4", epoch)]]).counts
    assert sorted(rows_of(a.warehouse)) == sorted(rows_of(b.warehouse)) == [0, 0, 1, 1]
    assert counts["inner.a.rows"] == counts["b.rows"] == counts["rows"] == 2
    begin = next(entry for entry in entries(recovery) if entry.kind == "begin")
    assert set(begin.children) == {"inner", "inner.a", "inner.slots", "b"}
    state = next(entry for entry in entries(recovery) if entry.kind == "prepared")
    assert set(state.states) == {"inner/slots/x", "inner/slots/y"}


class FirstContacts(NamedStagingSink):
    """Notes what it is told of its target."""

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        self.first = context.first_contact
        return {}


def test_a_grandchild_that_is_added_has_a_first_contact_of_its_own() -> None:
    recovery = MemoryRecoveryConfig()
    a, b = FirstContacts(Warehouse(), "a"), FirstContacts(Warehouse(), "b")
    LocalDriver(FanOutSink(inner=FanOutSink(a=a)), recovery).run_epoch(0, ROWS)
    LocalDriver(FanOutSink(inner=FanOutSink(a=a, b=b)), recovery).run_epoch(1, ROWS)
    assert (a.first, b.first) == (False, True)


class Sealing(NamedShelf):
    def seal(self, context: SealContext, parts: Sequence[PartSeal[int]]) -> None:
        super().seal(context, parts)
        self.sealed = [(part.part, part.state, part.writer is not None) for part in parts]


def test_a_sink_is_sealed_with_its_own_parts_and_states() -> None:
    a, recovery = Sealing(Shelf(), ("x", "y")), MemoryRecoveryConfig()
    LocalDriver(FanOutSink(a=a, b=Slotted("p", "q")), recovery).run_epoch(0, [[("0", 1)]])
    written = "xy"[a.part_fn("0") % 2]
    assert sorted(a.sealed) == [(part, int(part == written), part == written) for part in "xy"]


def test_a_child_whose_target_is_ahead_is_taken_back(tmp_path: Path) -> None:
    def run(recovery: str, epoch: int, number: int) -> None:
        sink = FanOutSink(only=FileSink(tmp_path / "out", on_rewind="truncate"))
        LocalDriver(sink, str(tmp_path / recovery)).run_epoch(epoch, [[{"id": number}]])

    run("log", 0, 0)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    run("log", 1, 1)
    run("copy", 1, 2)
    assert sorted(path.read_text() for path in (tmp_path / "out").glob("*.jsonl")) == ['{"id":0}\n', '{"id":2}\n']
