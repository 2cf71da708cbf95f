"""What a sink must have for what it promises, checked before any data moves."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import (
    CommitRequest,
    Committer,
    DeclaresGuarantee,
    Guarantee,
    Metrics,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsSeal,
    SupportsStateSerializer,
    SupportsWriterContext,
    SupportsWriterState,
    WithCompatibleState,
    WriterInitContext,
)
from outfall.capability_checks import check_sink, resolve
from outfall.errors import CapabilityError, ConfigurationError
from outfall.http import HttpSink
from outfall.protocol.partition import check_partition, resolve_partition
from outfall.s3 import S3Sink
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink, StatefulSinkPartition, StatelessSinkPartition
from outfall.testing import LocalDriver
from outfall.wrappers import BatchingSink, FanOutSink
from tests.unit.support.setups import Staging
from tests.unit.support.shelf import Shelf, ShelfSink
from tests.unit.support.warehouse import BundlingSink, HoldingSink, PlainSink, StagingSink, Warehouse


def test_buffered_rows_are_overdue_at_the_interval_of_the_sink_or_after_an_hour() -> None:
    interval, hour = timedelta(minutes=2), timedelta(hours=1)
    rolling = S3Sink("b", roll_bytes=1, roll_interval=interval)
    batching = BatchingSink(PlainSink(), batch_size=2, flush_interval="3 minutes", across_epochs=True)
    assert rolling.max_time_in_buffer() == interval
    assert S3Sink("b", roll_bytes=1).max_time_in_buffer() == hour
    assert batching.max_time_in_buffer() == timedelta(minutes=3)
    assert HttpSink("http://127.0.0.1:9", across_epochs=True, flush_interval="7 s").max_time_in_buffer() == timedelta(
        seconds=7
    )
    assert FanOutSink(a=rolling, b=batching, c=PlainSink()).max_time_in_buffer() == timedelta(minutes=3)


class Fixed(FixedPartitionedSink[Any, Any]):
    def list_parts(self) -> list[str]:
        return ["p"]

    def part_fn(self, item_key: str) -> int:
        return 0

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
        return object()


class Dynamic(DynamicSink[Any]):
    built: Any = None

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return self.built


def sink_with(base: type, *mixins: type) -> Any:
    """Make a sink of a class that has the mixins, whatever they leave abstract."""
    made = type("Made", (base, *mixins), {})
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return made()


@pytest.mark.parametrize("sink", [StagingSink, BundlingSink, HoldingSink])
def test_whole_sinks_pass(sink: type) -> None:
    check_sink(sink(Warehouse()))
    check_sink(ShelfSink(Shelf()))
    check_sink(PlainSink())


@pytest.mark.parametrize(
    ("base", "mixins", "text"),
    [
        (Dynamic, [SupportsPreCommitTopology], "SupportsPreCommitTopology but not SupportsCommitter"),
        (Dynamic, [SupportsPostCommitTopology], "SupportsPostCommitTopology but not SupportsCommitter"),
        (Dynamic, [WithCompatibleState], "WithCompatibleState but not SupportsWriterState"),
        (Fixed, [SupportsSeal], "SupportsSeal but not SupportsWriterContext"),
        (Dynamic, [SupportsSeal, SupportsWriterContext], "SupportsSeal but no parts"),
        (Dynamic, [SupportsStateSerializer], "SupportsStateSerializer but no parts"),
        (Fixed, [SupportsWriterState], "SupportsWriterState and fixed parts"),
        (object, [], "neither list_parts and build_part nor build"),
        (Fixed, [Dynamic], "both list_parts/build_part and build"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(base: type, mixins: list[type], text: str) -> None:
    sink = sink_with(base, *mixins)
    with pytest.raises(CapabilityError, match=text) as caught:
        check_sink(sink)
    assert str(caught.value).startswith("Made has ")
    assert "What to do" in str(caught.value)
    with pytest.raises(CapabilityError):
        LocalDriver(sink, Staging().recovery).coordinator()


def test_ancestry_does_not_matter() -> None:
    class Duck:
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Any: ...

    check_sink(Duck())


class WriteOnly:
    closed = False

    def write_batch(self, values: list[Any]) -> None: ...

    def close(self) -> None:
        self.closed = True


class ArrowOnly:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def close(self) -> None: ...


class Closing:
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("mixins", "built", "method"),
    [
        ([], Closing, "write_batch"),
        ([SupportsCommitter], WriteOnly, "prepare_commit"),
        ([SupportsWriterState], WriteOnly, "snapshot_state"),
    ],
)
def test_a_partition_without_what_its_sink_promises_is_refused_and_closed(
    mixins: list[type], built: type, method: str
) -> None:
    sink = sink_with(Dynamic, *mixins)
    sink.built = built()
    driver = LocalDriver(sink, Staging().recovery)
    ticket = driver.coordinator().begin(0)
    with pytest.raises(CapabilityError, match=rf"Made built a {built.__name__} that has no {method}\(\)"):
        driver.run_task(ticket, 0, 0, [(None, [1])])
    assert getattr(sink.built, "closed", True)


def test_a_part_without_a_snapshot_is_refused() -> None:
    class Sink(Fixed):
        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
            return WriteOnly()

    with pytest.raises(CapabilityError, match=r"has no snapshot\(\)"):
        LocalDriver(Sink(), Staging().recovery).run_epoch(0, [[("k", 1)]])


def test_an_arrow_partition_needs_no_write_batch() -> None:
    sink = Dynamic()
    sink.built = ArrowOnly()
    LocalDriver(sink, Staging().recovery).run_epoch(0, [[{"a": 1}, {"a": 2}]])
    assert sink.built.rows == [{"a": 1}, {"a": 2}]


def test_a_partition_is_driven_in_order_and_flushed_at_the_end() -> None:
    calls: list[str] = []

    class Partition(StatelessSinkPartition[Any]):
        def write_batch(self, values: list[Any]) -> None:
            calls.append(f"write {values}")

        def flush(self, end_of_input: bool) -> None:
            calls.append(f"flush {end_of_input}")

        def prepare_commit(self) -> Sequence[Any]:
            calls.append("prepare_commit")
            return []

        def snapshot_state(self, epoch: int) -> Sequence[Any]:
            calls.append(f"snapshot_state {epoch}")
            return []

        def close(self) -> None:
            calls.append("close")

    sink = sink_with(Dynamic, SupportsCommitter, SupportsWriterState)
    sink.built = Partition()
    sink.committable_serializer = sink.writer_state_serializer = lambda: None
    driver = LocalDriver(sink, Staging().recovery)
    ticket = driver.coordinator().begin(0)
    driver.run_task(ticket, 0, 0, [(None, [1]), (None, [2, 3])])
    assert calls == ["write [1]", "write [2, 3]", "flush True", "prepare_commit", "snapshot_state 0", "close"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_flush_of_a_partitions_own_is_called_as_it_is(wrapped: bool) -> None:
    sent: list[Any] = []

    class Buffered(StatelessSinkPartition[Any]):
        def __init__(self) -> None:
            self.held: list[Any] = []

        def write_batch(self, values: list[Any]) -> None:
            self.held += values

        def flush(self) -> None:
            sent.extend(self.held)
            self.held = []

    sink = Dynamic()
    sink.built = Buffered()
    target = FanOutSink(only=sink) if wrapped else sink
    LocalDriver(target, Staging().recovery).run_epoch(0, [[1, 2]])
    assert sent == [1, 2]


@pytest.mark.parametrize(
    ("mixins", "flush"),
    [([], lambda self, final: None), ([SupportsBufferedRows], lambda self: None)],
    ids=["unknown argument", "rows held and no argument"],
)
def test_a_flush_that_cannot_be_called_is_refused_before_the_first_row(mixins: list[type], flush: Any) -> None:
    sink = resolve(sink_with(Dynamic, *mixins))
    made = resolve_partition(type("Made", (WriteOnly,), {"flush": flush})())
    with pytest.raises(CapabilityError, match="does not take end_of_input"):
        check_partition(sink, made)


class Returning(WriteOnly):
    returned: Any = None

    def prepare_commit(self) -> Any:
        return self.returned

    def snapshot_state(self, epoch: int) -> Any:
        return self.returned


@pytest.mark.parametrize("mixin", [SupportsCommitter, SupportsWriterState])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("returned", ["abc", b"xyz", None, {"a": 1}])
def test_what_is_no_list_is_refused_before_it_is_recorded(mixin: type, wrapped: bool, returned: Any) -> None:
    sink = sink_with(Dynamic, mixin)
    sink.built = Returning()
    sink.built.returned = returned
    sink.committable_serializer = sink.writer_state_serializer = JsonSerializer
    recovery = Staging().recovery
    driver = LocalDriver(FanOutSink(only=sink) if wrapped else sink, recovery)
    with pytest.raises(CapabilityError, match=rf"Returning\.\w+\(\) returned a {type(returned).__name__}"):
        driver.run_epoch(0, [[1]])
    sink.built.returned = []
    assert not driver.run_epoch(0, [[1]]).skipped


def test_a_pre_commit_topology_that_returns_no_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BundlingSink, "add_pre_commit_topology", lambda self, results: None)
    with pytest.raises(CapabilityError, match=r"BundlingSink.add_pre_commit_topology\(\) returned a NoneType"):
        LocalDriver(BundlingSink(Warehouse()), Staging().recovery).run_epoch(0, [[1]])


def test_an_error_on_closing_fails_the_attempt_and_hides_no_other() -> None:
    class Unclosable(StatelessSinkPartition[Any]):
        def write_batch(self, values: list[Any]) -> None:
            if values == ["bad"]:
                raise ValueError("refused")

        def close(self) -> None:
            raise OSError("disk full")

    sink = Dynamic()
    sink.built = Unclosable()
    driver = LocalDriver(sink, Staging().recovery)
    ticket = driver.coordinator().begin(0)
    with pytest.raises(OSError, match="disk full"):
        driver.run_task(ticket, 0, 0, [(None, [1])])
    with pytest.raises(ValueError, match="refused"):
        driver.run_task(ticket, 0, 0, [(None, ["bad"])])


def test_a_context_says_who_writes() -> None:
    contexts: list[WriterInitContext] = []

    class Sink(ShelfSink):
        def bind(self, context: WriterInitContext) -> Any:
            contexts.append(context)
            return super().bind(context)

    driver = LocalDriver(Sink(Shelf()), Staging().recovery)
    driver.run_epoch(0, [[("0", 1), ("2", 2)]])
    driver.run_epoch(1, [[("0", 1)]])
    assert [(c.part, c.epoch, c.generation) for c in contexts] == [("a", 0, 1), ("c", 0, 1), ("a", 1, 4)]
    attempts = [context.attempt for context in contexts]
    assert attempts == sorted(set(attempts))
    assert len({context.incarnation for context in contexts}) == 1


def test_only_the_copy_that_was_bound_has_a_context() -> None:
    class Sink(PlainSink, SupportsWriterContext):
        pass

    context = WriterInitContext("sink", "i", 1, 0, part=None, attempt=3)
    sink = Sink()
    assert sink.bind(context).writer_context() is context
    with pytest.raises(ConfigurationError, match="Sink has no writer context"):
        sink.writer_context()


def test_an_undeclared_guarantee_is_at_least_once() -> None:
    assert resolve(PlainSink()).guarantee() is Guarantee.AT_LEAST_ONCE
    assert resolve(PlainSink()).requirements() == ()


def test_a_declared_guarantee_needs_a_writer_context() -> None:
    class Claims(PlainSink, DeclaresGuarantee):
        def guarantee(self) -> Guarantee:
            return Guarantee.EXACTLY_ONCE

        def requires(self) -> Sequence[str]:
            return ["luck"]

    assert resolve(Claims()).guarantee() is Guarantee.AT_LEAST_ONCE
    assert resolve(Claims()).requirements() == ("luck",)
    assert resolve(StagingSink(Warehouse())).guarantee() is Guarantee.EXACTLY_ONCE


def test_guarantees_are_ordered() -> None:
    assert Guarantee.AT_LEAST_ONCE < Guarantee.EFFECTIVELY_ONCE < Guarantee.EXACTLY_ONCE


def test_a_kind_is_the_classs_full_name() -> None:
    assert resolve(PlainSink()).kind() == "tests.unit.support.warehouse.PlainSink"


def test_metrics_sum_and_give_copies() -> None:
    metrics = Metrics({"rows": 1})
    metrics.add("rows", 2)
    metrics.add_all({"rows": 3, "bytes": 4})
    counts = metrics.counts
    counts["rows"] = 0
    assert metrics.counts == {"rows": 6, "bytes": 4}


def test_a_committer_has_no_evidence_and_revokes_nothing_unless_it_says_so() -> None:
    class Plain(Committer[str]):
        def commit(self, requests: Sequence[CommitRequest[str]]) -> None: ...

    requests = [CommitRequest("a")]
    Plain().find_lost(requests)
    assert requests[0].outcome.kind == "unsignalled"
    assert not Plain().nothing_published(requests)
    with pytest.raises(CapabilityError, match="Plain cannot revoke"):
        Plain().revoke(requests)


def test_tickets_and_contexts_pickle() -> None:
    setup = Staging()
    ticket = setup.driver().coordinator().begin(0)
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    context = WriterInitContext("s", "i", 1, 2, "p", 3)
    assert pickle.loads(pickle.dumps(context)) == context


def test_partitions_close_without_doing_anything_by_default() -> None:
    class Stateful(StatefulSinkPartition[Any, int]):
        def write_batch(self, values: list[Any]) -> None: ...

        def snapshot(self) -> int:
            return 0

    Stateful().close()
