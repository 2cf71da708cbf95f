"""Observed sinks: every call of the engine is announced as a step and can be intercepted.

A proxy wraps the sink, its partitions and its committer and has the same capabilities. The engine, `bind` and pickling
see a sink of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from outfall.capabilities import CommitRequest, Committer, WriterInitContext
from outfall.delegating_sink import DelegatingSink
from outfall.trace_points import reached

SINK_METHODS = (
    "list_parts", "bind", "check_target", "open_target", "seal", "clean_up",
    "add_pre_commit_topology", "add_post_commit_topology",
)  # fmt: skip
PARTITION_METHODS = (
    "write_batch", "write_record_batch", "flush", "prepare_commit", "snapshot", "snapshot_state",
    "dead_letters_to", "close"
)  # fmt: skip
COMMITTER_METHODS = ("commit", "find_lost", "revoke", "nothing_published", "close")


OPENING = {"build", "build_part", "restore_writer", "create_committer"}
CLOSING = {"close", "committer.close"}


def _step(moment: str, method: str) -> str:
    return f"sink: {moment} {method}"


STEPS = {
    _step(moment, method)
    for moment in ("before", "after")
    for method in [*SINK_METHODS, *PARTITION_METHODS, *OPENING, *(f"committer.{name}" for name in COMMITTER_METHODS)]
}
"""Returns the steps before and after each method call."""


class Probe:
    """Intercepts each method call of a sink. The default announces it before and after: `"sink: before write_batch"`.

    It announces nothing after opening and before closing. A simulated crash there would leave resources open that the
    death of a real process closes. The next call is announced anyway.
    """

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Execute the call of a method, and return the result for the engine.

        For a committer, the name of the method is `"committer.commit"` and so on.
        """
        if method not in CLOSING:
            reached(_step("before", method))
        result = call()
        if method not in OPENING:
            reached(_step("after", method))
        return result


P = TypeVar("P", bound=Probe)
_probes: list[Probe] = [Probe()]


@contextmanager
def probing(probe: P) -> Iterator[P]:
    """Use another probe for the calls in the block."""
    _probes.append(probe)
    try:
        yield probe
    finally:
        _probes.remove(probe)


def _around(method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
    return _probes[-1].around(method, args, call)


class SpiedSink(DelegatingSink):
    """A proxy of a sink. Its copies and pickles are observed too."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name in SINK_METHODS:
            return _spied(name, found)
        return _spied(name, found, _PROXIES[name]) if name in OPENING else found

    def bind(self, context: WriterInitContext) -> Self:
        return self.with_delegate(_around("bind", (context,), lambda: self.delegate.bind(context)))


def delegate_of(sink: Any) -> Any:
    """Return the sink behind all proxies."""
    while isinstance(sink, DelegatingSink):
        sink = sink.delegate
    return sink


class SpiedPartition:
    """A proxy of a partition with the same methods and signatures."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in PARTITION_METHODS:
            raise AttributeError(name)
        return _spied(name, getattr(self._inner, name))


def _spied(name: str, method: Callable[..., Any], proxy: Callable[[Any], Any] = lambda result: result) -> Any:
    """A method of the same signature that is announced, and whose result gets a proxy."""

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return proxy(_around(name, args, lambda: method(*args, **options)))

    return call


class SpiedCommitter(Committer[Any]):
    """A proxy of a committer."""

    def __init__(self, inner: Committer[Any]) -> None:
        self.inner = inner
        self.strict = inner.strict

    def group(self, committable: Any) -> str | None:
        return self.inner.group(committable)

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        _around("committer.commit", (requests,), lambda: self.inner.commit(announced(requests)))

    def find_lost(self, requests: Sequence[CommitRequest[Any]]) -> None:
        _around("committer.find_lost", (requests,), lambda: self.inner.find_lost(requests))

    def revoke(self, requests: Sequence[CommitRequest[Any]]) -> None:
        _around("committer.revoke", (requests,), lambda: self.inner.revoke(announced(requests)))

    def nothing_published(self, requests: Sequence[CommitRequest[Any]]) -> bool:
        found = _around("committer.nothing_published", (requests,), lambda: self.inner.nothing_published(requests))
        return bool(found)

    def close(self) -> None:
        _around("committer.close", (), self.inner.close)


def announced(requests: Sequence[CommitRequest[Any]]) -> Sequence[CommitRequest[Any]]:
    """A list of requests that announces each access.

    A committer that commits in a loop has committed all earlier requests at that point.
    """
    return _Announced(requests)


class _Announced(list[CommitRequest[Any]]):
    def __iter__(self) -> Iterator[CommitRequest[Any]]:
        for number, request in enumerate(super().__iter__(), 1):
            reached(f"sink: request {number} taken")
            yield request


_PROXIES: dict[str, Callable[[Any], Any]] = {
    "build": SpiedPartition,
    "build_part": SpiedPartition,
    "restore_writer": SpiedPartition,
    "create_committer": SpiedCommitter,
}
"""What the engine gets instead of what the sink opened."""
