"""Values of children with the name of their child, and the committer that passes them to the child."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitError, SerializationError
from outfall.serde import SimpleVersionedSerializer, parse_json
from outfall.wrappers.children import ChildMetrics, for_each, of_child, share


@dataclass(frozen=True)
class ChildValue:
    """A committable, write result or writer state, with its child."""

    child: str
    value: Any

    @property
    def rows(self) -> int | None:
        """Number of rows of a committable, if it has one."""
        return CommitRequest(self.value).rows

    def __str__(self) -> str:
        """Return both, for texts."""
        return f"{self.child}: {self.value}"


class ChildValueSerializer(SimpleVersionedSerializer[ChildValue]):
    """A line of JSON with the child's name and its serializer's version, followed by the bytes of that serializer."""

    def __init__(self, serializers: Mapping[str, Callable[[], SimpleVersionedSerializer[Any]]]) -> None:
        """Use `serializers`, by the names of the children."""
        self._serializers = serializers

    def serialize(self, value: ChildValue) -> bytes:
        """Write the line, and then the child's bytes."""
        serializer = self._of(value.child)
        head = json.dumps({"child": value.child, "version": serializer.version})
        return head.encode() + b"\n" + serializer.serialize(value.value)

    def deserialize(self, version: int, data: bytes) -> ChildValue:
        """Read the line, and let the child's serializer read the rest."""
        self.check_version(version)
        head, found, rest = data.partition(b"\n")
        try:
            tag = parse_json(head)
            child, inner = str(tag["child"]), int(tag["version"])
        except (ValueError, TypeError, KeyError) as error:
            raise SerializationError("a stored value does not have the name of its sink", why=str(error)) from error
        if not found:
            raise SerializationError(f"a stored value of the sink {child!r} has no content")
        return ChildValue(child, self._of(child).deserialize(inner, rest))

    def _of(self, child: str) -> SimpleVersionedSerializer[Any]:
        make = self._serializers.get(child)
        if make is None:
            raise SerializationError(
                f"a stored value belongs to the sink {child!r}, which is not among {', '.join(self._serializers)}",
                do="restore the former name of the sink",
            )
        return make()


class ListSerializer(SimpleVersionedSerializer[Sequence[Any]]):
    """Several values of one serializer: a line of JSON with its version and the lengths, followed by their bytes."""

    def __init__(self, item: SimpleVersionedSerializer[Any]) -> None:
        """Serialize each value with `item`."""
        self._item = item

    def serialize(self, value: Sequence[Any]) -> bytes:
        """Write the lengths, and then the values."""
        items = [self._item.serialize(item) for item in value]
        head = json.dumps({"version": self._item.version, "lengths": [len(item) for item in items]})
        return b"".join([head.encode(), b"\n", *items])

    def deserialize(self, version: int, data: bytes) -> Sequence[Any]:
        """Split by the lengths."""
        self.check_version(version)
        head, _, rest = data.partition(b"\n")
        try:
            found = parse_json(head)
            inner, lengths = int(found["version"]), [int(length) for length in found["lengths"]]
        except (ValueError, TypeError, KeyError) as error:
            raise SerializationError("a stored list does not describe its contents", why=str(error)) from error
        if sum(lengths) != len(rest):
            raise SerializationError(f"a stored list has {len(rest)} bytes, not {sum(lengths)}")
        values, at = [], 0
        for length in lengths:
            values.append(self._item.deserialize(inner, rest[at : at + length]))
            at += length
        return values


class CompositeCommitter(Committer[ChildValue]):
    """Passes each request to the committer of its child. Every child is a separate group."""

    def __init__(self, sinks: Mapping[str, Any], context: CommitterInitContext) -> None:
        """Create no committer yet: each is created when its child has something to commit."""
        self._sinks = sinks
        self._context = context
        self._made: dict[str, Committer[Any]] = {}

    def group(self, committable: ChildValue) -> str:
        """The child's name; for a nested composite also that of its own child, after a dot."""
        inner = self._committer(committable.child).group(committable.value)
        return committable.child if inner is None else f"{committable.child}.{inner}"

    def commit(self, requests: Sequence[CommitRequest[ChildValue]]) -> None:
        """Let each child commit its requests."""
        self._hand_on(requests, _commit)

    def find_lost(self, requests: Sequence[CommitRequest[ChildValue]]) -> None:
        """Let each child find its lost data."""
        self._hand_on(requests, lambda committer, own: committer.find_lost(own))

    def revoke(self, requests: Sequence[CommitRequest[ChildValue]]) -> None:
        """Let each child revoke its data."""
        self._hand_on(requests, lambda committer, own: committer.revoke(own))

    def nothing_published(self, requests: Sequence[CommitRequest[ChildValue]]) -> bool:
        """Whether every child has evidence that none of its data was published."""
        return all(
            self._committer(name).nothing_published([_inner(request) for request in own])
            for name, own in _by_child(requests).items()
        )

    def close(self) -> None:
        """Close every committer that was created."""
        for_each(self._made, lambda name, committer: committer.close(), "several committers could not be closed")

    def _committer(self, name: str) -> Committer[Any]:
        if name not in self._made:
            published = self._context.children_published
            context = replace(
                self._context,
                metrics=ChildMetrics(self._context.metrics, name),
                published=published.get(name),
                children_published=share(name, published, separator="."),
            )
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
