"""Commits what each child has written through that child's own committer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitError
from outfall.wrappers.composite.children import ChildMetrics, for_each, of_child
from outfall.wrappers.composite.tagged import OfChild


class CompositeCommitter(Committer[OfChild]):
    """Hands each request to the committer of its child. Every child is a group of its own."""

    def __init__(self, sinks: Mapping[str, Any], context: CommitterInitContext) -> None:
        """Make no committer yet: each is made when its child has something to commit."""
        self._sinks = sinks
        self._context = context
        self._made: dict[str, Committer[Any]] = {}

    def group(self, committable: OfChild) -> str:
        """The child's name, and behind a dot that of its own child if it consists of others."""
        inner = self._committer(committable.child).group(committable.value)
        return committable.child if inner is None else f"{committable.child}.{inner}"

    def commit(self, requests: Sequence[CommitRequest[OfChild]]) -> None:
        """Have each child commit its own."""
        self._hand_on(requests, _commit)

    def find_lost(self, requests: Sequence[CommitRequest[OfChild]]) -> None:
        """Have each child look for its own."""
        self._hand_on(requests, lambda committer, own: committer.find_lost(own))

    def revoke(self, requests: Sequence[CommitRequest[OfChild]]) -> None:
        """Have each child revoke its own."""
        self._hand_on(requests, lambda committer, own: committer.revoke(own))

    def nothing_published(self, requests: Sequence[CommitRequest[OfChild]]) -> bool:
        """Whether every child has evidence that nothing of its own was published."""
        return all(
            self._committer(name).nothing_published([_inner(request) for request in own])
            for name, own in _by_child(requests).items()
        )

    def close(self) -> None:
        """Close every committer that was made."""
        for_each(self._made, lambda name, committer: committer.close(), "several committers could not be closed")

    def _committer(self, name: str) -> Committer[Any]:
        if name not in self._made:
            context = replace(self._context, metrics=ChildMetrics(self._context.metrics, name))
            with of_child(name):
                self._made[name] = self._sinks[name].create_committer(context)
        return self._made[name]

    def _hand_on(
        self,
        requests: Sequence[CommitRequest[OfChild]],
        act: Callable[[Committer[Any], Sequence[CommitRequest[Any]]], None],
    ) -> None:
        def of_one(name: str, own: Sequence[CommitRequest[OfChild]]) -> None:
            handed_on = [_inner(request) for request in own]
            try:
                act(self._committer(name), handed_on)
            finally:
                for request, inner in zip(own, handed_on, strict=True):
                    request.resolve_as(inner, OfChild(name, inner.committable))

        for_each(_by_child(requests), of_one, "several sinks failed to commit", **self._where())

    def _where(self) -> dict[str, Any]:
        return {"step": self._context.step_id, "epoch": self._context.epoch}


def _commit(committer: Committer[Any], requests: Sequence[CommitRequest[Any]]) -> None:
    committer.commit(requests)
    if committer.strict and any(request.outcome.kind == "unsignalled" for request in requests):
        raise CommitError(f"the strict {type(committer).__name__} left a committable unresolved")


def _inner(request: CommitRequest[OfChild]) -> CommitRequest[Any]:
    inner: CommitRequest[Any] = CommitRequest(request.committable.value, request.number_of_retries)
    inner.resolve_as(request, request.committable.value)
    return inner


def _by_child(requests: Sequence[CommitRequest[OfChild]]) -> dict[str, list[CommitRequest[OfChild]]]:
    found: dict[str, list[CommitRequest[OfChild]]] = {}
    for request in requests:
        found.setdefault(request.committable.child, []).append(request)
    return found
