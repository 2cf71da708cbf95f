"""Values of one child among those of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.committer import CommitRequest
from outfall.errors import SerializationError
from outfall.serde import SimpleVersionedSerializer


@dataclass(frozen=True)
class OfChild:
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


class TaggedSerializer(SimpleVersionedSerializer[OfChild]):
    """A line of JSON with the child's name and its serializer's version, and after it the bytes of that serializer."""

    def __init__(self, serializers: Mapping[str, Callable[[], SimpleVersionedSerializer[Any]]]) -> None:
        """Store the values of children by what `serializers` make for each name."""
        self._serializers = serializers

    @property
    def version(self) -> int:
        """1."""
        return 1

    def serialize(self, value: OfChild) -> bytes:
        """Put the line before the child's bytes."""
        serializer = self._of(value.child)
        head = json.dumps({"child": value.child, "version": serializer.version})
        return head.encode() + b"\n" + serializer.serialize(value.value)

    def deserialize(self, version: int, data: bytes) -> OfChild:
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
        return OfChild(child, self._of(child).deserialize(inner, rest))

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
