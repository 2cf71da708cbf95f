"""Sinks under observation: every call that the engine makes is announced as a step and may be interfered with.

A sink is observed by a subclass made on the fly, so that the engine, `bind` and pickling see the same kind of sink as
before. Partitions and committers stand behind a front that has exactly their methods.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from outfall.capabilities import CommitRequest, Committer
from outfall.trace_points import reached

SINK_METHODS = (
    "list_parts", "bind", "check_target", "open_target", "seal", "sweep",
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
"""The steps before and after each call of a sink's methods."""


class Probe:
    """Sees each call of a sink's methods. The default announces it before and after: `"sink: before write_batch"`.

    Not after opening and not before closing, where a crash within one process would leave things open that the death of
    the process closes; what comes next is announced anyway.
    """

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Make the call.

        Args:
            method: its name; a committer's are `"committer.commit"` and so on.
            args: its arguments.
            call: makes it.

        Returns:
            What the engine is to see as its result.
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
    """Have a probe of one's own see the calls within the block."""
    _probes.append(probe)
    try:
        yield probe
    finally:
        _probes.remove(probe)


def spied(sink: Any) -> Any:
    """Return a copy of a sink whose calls are observed. It can be copied and pickled like the sink."""
    found = copy.copy(sink)
    kind: Any = type(sink)
    object.__setattr__(found, "__class__", _observed(kind))
    return found


def _around(method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
    return _probes[-1].around(method, args, call)


@functools.cache
def _observed(kind: Any) -> type:
    """The subclass of a sink's class that announces its calls."""
    names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    names |= {name: _announced(kind, name) for name in SINK_METHODS if callable(getattr(kind, name, None))}
    names |= {name: _opening(kind, name) for name in ("build", "build_part", "restore_writer") if hasattr(kind, name)}
    if hasattr(kind, "create_committer"):
        names["create_committer"] = _creating(kind)
    names["__copy__"] = lambda self: _copied(self, kind)
    names["__reduce_ex__"] = lambda self, protocol: (spied, (_plain(self, kind),))
    return type(kind)(kind.__name__, (kind,), names)  # type: ignore[no-any-return]


def _announced(kind: type, name: str) -> Any:
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return _around(name, args, lambda: original(self, *args, **options))

    return method


def _opening(kind: type, name: str) -> Any:
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return _front(_around(name, args, lambda: original(self, *args, **options)))

    return method


def _creating(kind: type) -> Any:
    original: Any = getattr(kind, "create_committer")  # noqa: B009 - a type has no such attribute for mypy

    def create_committer(self: Any, context: Any) -> Any:
        return _Committer(_around("create_committer", (context,), lambda: original(self, context)))

    return create_committer


def _plain(sink: Any, kind: type) -> Any:
    """A copy that is not observed."""
    observed = type(sink)
    object.__setattr__(sink, "__class__", kind)
    try:
        return copy.copy(sink)
    finally:
        object.__setattr__(sink, "__class__", observed)


def _copied(sink: Any, kind: type) -> Any:
    return spied(_plain(sink, kind))


def _front(partition: Any) -> Any:
    """Stand before a partition, with those of the contract's methods that it has."""
    names = tuple(name for name in PARTITION_METHODS if callable(getattr(partition, name, None)))
    return _front_class(type(partition).__name__, names)(partition)


@functools.cache
def _front_class(name: str, methods: tuple[str, ...]) -> type:
    def forward(method: str) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            inner = getattr(self.inner, method)
            return _around(method, args, lambda: inner(*args, **options))

        return call

    def start(self: Any, inner: Any) -> None:
        self.inner = inner

    return type(name, (), {"__init__": start} | {method: forward(method) for method in methods})


class _Committer(Committer[Any]):
    """Stands before a committer."""

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
    """The same requests in a list that announces each as it is taken.

    A committer that commits in a loop has then committed those before.
    """
    return _Announced(requests)


class _Announced(list[CommitRequest[Any]]):
    def __iter__(self) -> Iterator[CommitRequest[Any]]:
        for number, request in enumerate(super().__iter__(), 1):
            reached(f"sink: request {number} taken")
            yield request
