"""`DelegatingSink`: to the engine it is the sink that it holds, and what a sink says of itself counts."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

import pytest

from outfall import capabilities
from outfall.capabilities import DeclaresCapabilities, SupportsCommitter, SupportsTarget, SupportsWriterContext
from outfall.capability_checks import (
    guarantee_of,
    is_dynamic,
    is_fixed,
    kind_of,
    owns_target,
    routes_by_default,
    supports,
    target_of,
)
from outfall.delegating_sink import DelegatingSink
from outfall.file import FileSink
from outfall.sinks import DynamicSink, FixedPartitionedSink, Sink
from outfall.wrappers import FanOutSink
from tests.unit.support.warehouse import PlainSink

FEATURES = [kind for kind in vars(capabilities).values() if isinstance(kind, type) and "Supports" in kind.__name__]
SINKS = [FileSink("/a"), FileSink("/a", parts=2), PlainSink(), FanOutSink(a=FileSink("/a"), b=PlainSink())]


@pytest.mark.parametrize("worker", SINKS, ids=kind_of)
def test_it_has_the_features_of_its_worker_and_no_others(worker: Any) -> None:
    sink = pickle.loads(pickle.dumps(DelegatingSink(worker)))
    for feature in (*FEATURES, FixedPartitionedSink, DynamicSink):
        assert supports(sink, feature) == supports(worker, feature), feature
    for ask in (guarantee_of, is_dynamic, is_fixed, kind_of, owns_target, target_of):
        assert ask(sink) == ask(worker), ask


def test_it_has_every_method_of_a_feature_itself() -> None:
    inherited = {
        name
        for kind in DelegatingSink.__mro__[1:]
        if kind.__module__.startswith("outfall.")
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_") and name not in vars(DelegatingSink)
    }
    assert inherited == set()


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
    assert (is_fixed(fixed), is_dynamic(fixed), target_of(fixed)) == (True, False, "here")
    assert (is_fixed(dynamic), is_dynamic(dynamic), target_of(dynamic)) == (False, True, None)
    assert not supports(fixed, SupportsWriterContext)


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
    assert not supports(Named(), SupportsCommitter)


def test_a_copy_that_stands_for_another_sink_has_the_features_of_that_one() -> None:
    sink = DelegatingSink(FileSink("/a"))
    other = sink.with_worker(FileSink("/a", parts=1))
    assert (is_fixed(sink), is_fixed(other), supports(other, SupportsCommitter)) == (False, True, False)
