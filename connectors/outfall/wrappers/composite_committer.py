"""What children hand over and keep, each value with the name of its child; and the committer that sends it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitError, SerializationError
from outfall.serde import SimpleVersionedSerializer
from outfall.wrappers.children import ChildMetrics, for_each, of_child


@dataclass(frozen=True)
class ChildValue:
    """A committable, write result or writer state, and the child whose it is."""

    child: str
    value: Any

    @property
    def rows(self) -> int | None:
        """Of a committable how many rows it stands for, where it says so."""
        return CommitRequest(self.value).rows

    def __str__(self) -> str:
        """Name both, for texts."""
        return f"{self.child}: {self.value}"


class ChildValueSerializer(SimpleVersionedSerializer[ChildValue]):
    """A line of JSON with the child's name and its serializer's version, and after it the bytes of that serializer."""

    def __init__(self, serializers: Mapping[str, Callable[[], SimpleVersionedSerializer[Any]]]) -> None:
        """Store the values of children by what `serializers` make for each name."""
        self._serializers = serializers

    @property
    def version(self) -> int:
        """1."""
        return 1

    def serialize(self, value: ChildValue) -> bytes:
        """Put the line before the child's bytes."""
        serializer = self._of(value.child)
        head = json.dumps({"child": value.child, "version": serializer.version})
        return head.encode() + b"\n" + serializer.serialize(value.value)

    def deserialize(self, version: int, data: bytes) -> ChildValue:
        """Read the line, and have the child's serializer read the rest."""
        self.check_version(version)
        head, found, rest = data.partition(b"\n")
        try:
            tag = json.loads(head)
            child, inner = str(tag["child"]), int(tag["version"])
        except (ValueError, TypeError, KeyError) as error:
            raise SerializationError("a stored value does not say which sink's it is", why=str(error)) from error
        if not found:
            raise SerializationError(f"a stored value of the sink {child!r} has no content")
        return ChildValue(child, self._of(child).deserialize(inner, rest))

    def _of(self, child: str) -> SimpleVersionedSerializer[Any]:
        make = self._serializers.get(child)
        if make is None:
            raise SerializationError(
                f"a stored value is of the sink {child!r}, which is not among {', '.join(self._serializers)}",
                do="give the sink its former name back",
            )
        return make()


class ListSerializer(SimpleVersionedSerializer[Sequence[Any]]):
    """Several values of one serializer: a line of JSON with its version and each one's length, and then their bytes."""

    def __init__(self, item: SimpleVersionedSerializer[Any]) -> None:
        """Store each value by `item`."""
        self._item = item

    @property
    def version(self) -> int:
        """1."""
        return 1

    def serialize(self, value: Sequence[Any]) -> bytes:
        """Put the lengths before the values."""
        items = [self._item.serialize(item) for item in value]
        head = json.dumps({"version": self._item.version, "lengths": [len(item) for item in items]})
        return b"".join([head.encode(), b"\n", *items])

    def deserialize(self, version: int, data: bytes) -> Sequence[Any]:
        """Cut by the lengths."""
        self.check_version(version)
        head, _, rest = data.partition(b"\n")
        try:
            found = json.loads(head)
            inner, lengths = int(found["version"]), [int(length) for length in found["lengths"]]
        except (ValueError, TypeError, KeyError) as error:
            raise SerializationError("a stored list does not say what is in it", why=str(error)) from error
        if sum(lengths) != len(rest):
            raise SerializationError(f"a stored list has {len(rest)} bytes, not {sum(lengths)}")
        values, at = [], 0
        for length in lengths:
            values.append(self._item.deserialize(inner, rest[at : at + length]))
            at += length
        return values


class CompositeCommitter(Committer[ChildValue]):
    """Hands each request to the committer of its child. Every child is a group of its own."""

    def __init__(self, sinks: Mapping[str, Any], context: CommitterInitContext) -> None:
        """Make no committer yet: each is made when its child has something to commit."""
        self._sinks = sinks
        self._context = context
        self._made: dict[str, Committer[Any]] = {}

    def group(self, committable: ChildValue) -> str:
        """The child's name, and behind a dot that of its own child if it consists of others."""
        inner = self._committer(committable.child).group(committable.value)
        return committable.child if inner is None else f"{committable.child}.{inner}"

    def commit(self, requests: Sequence[CommitRequest[ChildValue]]) -> None:
        """Have each child commit its own."""
        self._hand_on(requests, _commit)

    def find_lost(self, requests: Sequence[CommitRequest[ChildValue]]) -> None:
        """Have each child look for its own."""
        self._hand_on(requests, lambda committer, own: committer.find_lost(own))

    def revoke(self, requests: Sequence[CommitRequest[ChildValue]]) -> None:
        """Have each child revoke its own."""
        self._hand_on(requests, lambda committer, own: committer.revoke(own))

    def nothing_published(self, requests: Sequence[CommitRequest[ChildValue]]) -> bool:
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
        requests: Sequence[CommitRequest[ChildValue]],
        act: Callable[[Committer[Any], Sequence[CommitRequest[Any]]], None],
    ) -> None:
        def of_one(name: str, own: Sequence[CommitRequest[ChildValue]]) -> None:
            handed_on = [_inner(request) for request in own]
            try:
                act(self._committer(name), handed_on)
            finally:
                for request, inner in zip(own, handed_on, strict=True):
                    request.resolve_as(inner, ChildValue(name, inner.committable))

        for_each(_by_child(requests), of_one, "several sinks failed to commit", **self._where())

    def _where(self) -> dict[str, Any]:
        return {"step": self._context.step_id, "epoch": self._context.epoch}


def _commit(committer: Committer[Any], requests: Sequence[CommitRequest[Any]]) -> None:
    committer.commit(requests)
    if committer.strict and any(request.outcome.kind == "unsignalled" for request in requests):
        raise CommitError(f"the strict {type(committer).__name__} left a committable unresolved")


def _inner(request: CommitRequest[ChildValue]) -> CommitRequest[Any]:
    inner: CommitRequest[Any] = CommitRequest(request.committable.value, request.number_of_retries)
    inner.resolve_as(request, request.committable.value)
    return inner


def _by_child(requests: Sequence[CommitRequest[ChildValue]]) -> dict[str, list[CommitRequest[ChildValue]]]:
    found: dict[str, list[CommitRequest[ChildValue]]] = {}
    for request in requests:
        found.setdefault(request.committable.child, []).append(request)
    return found
