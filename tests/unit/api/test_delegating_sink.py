"""`DelegatingSink`: to the engine it is the sink that it holds, and what a sink says of itself counts."""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import closing
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from outfall import capabilities
from outfall.capabilities import (
    DeclaresCapabilities,
    SupportsCommitter,
    SupportsTarget,
    SupportsWriterContext,
    shown_name,
)
from outfall.capability_checks import (
    capabilities_of,
    resolve,
    routes_by_default,
)
from outfall.delegating_sink import DelegatingSink
from outfall.file import FileSink
from outfall.protocol.clock import SystemClock
from outfall.protocol.partition import resolve_partition
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.sinks import DynamicSink, FixedPartitionedSink, Sink, StatelessSinkPartition
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.testing.conformance.spying import SpiedSink
from outfall.wrappers import BatchingSink, ExactlyOnceSink, FanOutSink
from outfall.wrappers.batch_buffer import BatchingOptions
from outfall.wrappers.batching import BatchedPartition
from tests.unit.support.warehouse import PlainSink

FEATURES = [kind for kind in vars(capabilities).values() if isinstance(kind, type) and "Supports" in kind.__name__]
SINKS = [FileSink("/a"), FileSink("/a", parts=2), PlainSink(), FanOutSink(a=FileSink("/a"), b=PlainSink())]


@pytest.mark.parametrize("worker", SINKS, ids=lambda sink: resolve(sink).kind())
def test_it_has_the_features_of_its_worker_and_no_others(worker: Any) -> None:
    sink = pickle.loads(pickle.dumps(DelegatingSink(worker)))
    for feature in (*FEATURES, FixedPartitionedSink, DynamicSink):
        assert (feature in capabilities_of(sink)) == (feature in capabilities_of(worker)), feature
    own, inner = resolve(sink), resolve(worker)
    assert (own.fixed, own.dynamic) == (inner.fixed, inner.dynamic)
    for answer in ("guarantee", "kind", "owns_target", "requirements", "routing_key", "target"):
        assert getattr(own, answer)() == getattr(inner, answer)(), answer


@pytest.mark.parametrize("worker", SINKS, ids=lambda sink: resolve(sink).kind())
def test_every_other_public_name_is_the_workers(worker: Any) -> None:
    sink = copy.copy(DelegatingSink(worker))
    methods = {name for name in dir(type(worker)) if not name.startswith("_") and callable(getattr(type(worker), name))}
    own = {"bind", "capabilities", "in_save_mode", "kind", "with_delegate"}
    assert {name for name in methods if getattr(sink, name) != getattr(worker, name)} == methods & own


@pytest.mark.parametrize("around", [DelegatingSink, BatchingSink, SpiedSink])
def test_a_copy_for_a_save_mode_is_of_its_class(around: Any) -> None:
    sink = resolve(around(FileSink("/a"))).in_save_mode("overwrite")
    assert (type(sink), sink.delegate.options.on_existing) == (around, "overwrite")


def test_a_name_that_neither_has_is_missing_even_before_there_is_a_worker() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        DelegatingSink(PlainSink()).nothing  # noqa: B018
    with pytest.raises(AttributeError, match="delegate"):
        DelegatingSink.__new__(DelegatingSink).target  # noqa: B018


class SupportsCompaction(ABC):
    """A capability that is known nowhere else."""

    @abstractmethod
    def compact(self) -> str: ...


class Compacting(PlainSink, SupportsCompaction):
    def compact(self) -> str:
        return "compacted"


class Compacted(StatelessSinkPartition[Any], SupportsCompaction):
    def write_batch(self, values: list[Any]) -> None: ...

    def compact(self) -> str:
        return "compacted"


@pytest.mark.parametrize("around", [lambda sink: sink, DelegatingSink, BatchingSink, SpiedSink])
def test_a_new_capability_is_its_class_and_nothing_else(around: Any) -> None:
    sink = pickle.loads(pickle.dumps(around(Compacting())))
    assert SupportsCompaction in resolve(sink).capabilities
    assert SupportsCompaction not in resolve(around(PlainSink())).capabilities
    assert sink.compact() == "compacted"


def test_a_new_capability_of_a_partition_is_its_class_and_nothing_else() -> None:
    partition = BatchedPartition(Compacted(), BatchingOptions(), SystemClock())
    assert SupportsCompaction in resolve_partition(partition).capabilities
    assert partition.compact() == "compacted"


class Counting(PlainSink, DeclaresCapabilities):
    """Counts how often it is asked."""

    asked: ClassVar[list[str]] = []

    def capabilities(self) -> Collection[type]:
        self.asked.append("sink")
        return [DynamicSink]

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return CountingPartition()


class CountingPartition(StatelessSinkPartition[Any], DeclaresCapabilities):
    def capabilities(self) -> Collection[type]:
        Counting.asked.append("partition")
        return []

    def write_batch(self, values: list[Any]) -> None: ...


@pytest.mark.parametrize("around", [lambda sink: sink, DelegatingSink, BatchingSink])
def test_a_task_asks_once_however_many_batches_it_writes(around: Any) -> None:
    sink = around(Counting())
    driver = LocalDriver(sink, MemoryRecoveryConfig())
    with closing(driver.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        Counting.asked.clear()
        batch = pa.RecordBatch.from_pylist([{"id": 1}])
        response = EpochTask(sink, ticket, TaskIdentity(0, 0, attempt=0)).run([(None, batch)] * 3)
        assert Counting.asked == ["sink", "partition"]
        coordinator.finish(ticket, [response])
    assert Counting.asked == ["sink", "partition"], "the driver asked when the step was made"


def test_a_part_fn_of_the_workers_own_is_seen() -> None:
    class Routed(FixedPartitionedSink[Any, Any]):
        def list_parts(self) -> list[str]:
            return ["a"]

        def part_fn(self, item_key: str) -> int:
            return 7

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
            raise NotImplementedError

    assert not routes_by_default(DelegatingSink(Routed()))
    assert DelegatingSink(Routed()).part_fn("x") == 7
    assert routes_by_default(DelegatingSink(FileSink("/a", parts=1)))


def test_what_a_sink_says_of_itself_counts_more_than_its_class() -> None:
    class Either(FixedPartitionedSink[Any, Any], SupportsTarget[Any], SupportsWriterContext, DeclaresCapabilities):
        def __init__(self, *, fixed: bool) -> None:
            self.fixed = fixed

        def capabilities(self) -> Collection[type]:
            return [FixedPartitionedSink, SupportsTarget] if self.fixed else [DynamicSink]

        def list_parts(self) -> list[str]:
            return []

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
            raise NotImplementedError

        def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
            raise NotImplementedError

        def target(self) -> str:
            return "here"

        def bind(self, context: Any) -> Any:
            return self

    fixed, dynamic = Either(fixed=True), Either(fixed=False)
    assert (resolve(fixed).fixed, resolve(fixed).dynamic, resolve(fixed).target()) == (True, False, "here")
    assert (resolve(dynamic).fixed, resolve(dynamic).dynamic, resolve(dynamic).target()) == (False, True, None)
    assert SupportsWriterContext not in capabilities_of(fixed)


def test_a_capability_that_is_declared_has_its_bases_too() -> None:
    class SupportsOwnCommitter(SupportsCommitter[Any]):
        pass

    class Declared(DeclaresCapabilities):
        def capabilities(self) -> Collection[type]:
            return [DynamicSink, SupportsOwnCommitter]

    assert capabilities_of(Declared()) >= {SupportsOwnCommitter, SupportsCommitter, DynamicSink}


def test_messages_name_the_wrapper_and_not_what_its_worker_is_shown_as() -> None:
    once = ExactlyOnceSink(PlainSink(), offset="offset", source_partition="partition")
    assert [shown_name(sink) for sink in (once, once.delegate, BatchingSink(once))] == [
        "ExactlyOnceSink",
        "ExactlyOnceSink",
        "BatchingSink",
    ]


def test_a_sink_that_only_names_its_target_does_not_own_it() -> None:
    class Named(Sink[Any], SupportsTarget[Any]):
        def target(self) -> str:
            return "x"

    class CleaningUp(Named):
        def clean_up(self, context: Any) -> int:
            return 1

    context: Any = None
    assert (Named().owns_target(), CleaningUp().owns_target()) == (False, True)
    assert (Named().find_leftovers(context), CleaningUp().find_leftovers(context)) == ((), None)
    assert SupportsCommitter not in capabilities_of(Named())


def test_a_copy_that_stands_for_another_sink_has_the_features_of_that_one() -> None:
    sink = DelegatingSink(FileSink("/a"))
    other = sink.with_delegate(FileSink("/a", parts=1))
    assert (resolve(sink).fixed, resolve(other).fixed) == (False, True)
    assert SupportsCommitter not in capabilities_of(other)
