"""How states and committables become bytes that a later release can read."""

from __future__ import annotations

import json
import math
import pickle
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from outfall.errors import SerializationError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class SimpleVersionedSerializer(ABC, Generic[T]):
    """Bytes with a version beside them (Flink's `SimpleVersionedSerializer`).

    The version is stored with the bytes; a newer serializer must read every older version.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that `serialize` writes, from 1."""

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Turn a value into bytes.

        Raises:
            SerializationError: the value cannot be stored.
        """

    @abstractmethod
    def deserialize(self, version: int, data: bytes) -> T:
        """Turn bytes into the value they were made of.

        Args:
            version: the version that was stored with the bytes.
            data: what `serialize` returned.

        Raises:
            SerializationError: the version is unknown, or the bytes are damaged.
        """

    def check_version(self, version: int) -> None:
        """Refuse a version newer than this one writes, or below 1."""
        if not 1 <= version <= self.version:
            raise SerializationError(
                f"{type(self).__name__} reads versions 1 to {self.version} but found version {version}",
                do="run the release that wrote it, or a newer one",
            )


class JsonSerializer(SimpleVersionedSerializer[Any]):
    """JSON for plain values; the default for states of sinks that name no serializer.

    Refuses what JSON would give back changed in value or type (a tuple, an integer key, NaN, an object).
    """

    @property
    def version(self) -> int:
        """1."""
        return 1

    def serialize(self, value: Any) -> bytes:
        """Encode as compact UTF-8 JSON."""
        try:
            data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            same = _same(json.loads(data), value)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._refused(value) from error
        if not same:
            raise self._refused(value)
        return data

    def deserialize(self, version: int, data: bytes) -> Any:
        """Decode JSON."""
        self.check_version(version)
        try:
            return json.loads(data)
        except ValueError as error:
            raise SerializationError("a stored value is not JSON", why=str(error)) from error

    def _refused(self, value: Any) -> SerializationError:
        return SerializationError(
            f"a value of type {type(value).__name__} does not come back unchanged from JSON",
            do="use what JSON has (a list for a tuple, text for a date), or return a serializer of your own where the"
            " sink names one: state_serializer() (SupportsStateSerializer), writer_state_serializer() or"
            " committable_serializer(); outfall.serde.PickleSerializer() will do if nobody else can write to the"
            " recovery location",
        )


class ModelSerializer(SimpleVersionedSerializer[M]):
    """JSON for a pydantic model: the serializer of built-in connectors."""

    def __init__(self, model: type[M], version: int = 1) -> None:
        """Serialize instances of `model`, which reads its own older versions by defaults."""
        self._model = model
        self._version = version

    @property
    def version(self) -> int:
        """As given to the constructor."""
        return self._version

    def serialize(self, value: M) -> bytes:
        """Encode the model's fields as JSON."""
        return value.model_dump_json().encode()

    def deserialize(self, version: int, data: bytes) -> M:
        """Decode and validate the model."""
        self.check_version(version)
        try:
            return self._model.model_validate_json(data)
        except ValidationError as error:
            raise SerializationError(f"a stored {self._model.__name__} is damaged", why=_brief(error)) from error


class PickleSerializer(SimpleVersionedSerializer[Any]):
    """Pickle, for those who name it.

    Whoever can write to the recovery location can then run code in the query: use it only where that is nobody else.
    """

    @property
    def version(self) -> int:
        """1."""
        return 1

    def serialize(self, value: Any) -> bytes:
        """Pickle the value."""
        try:
            return pickle.dumps(value, protocol=4)
        except Exception as error:
            raise SerializationError(f"a {type(value).__name__} cannot be pickled", why=str(error)) from error

    def deserialize(self, version: int, data: bytes) -> Any:
        """Unpickle the value."""
        self.check_version(version)
        try:
            return pickle.loads(data)  # noqa: S301 - the user named this serializer
        except Exception as error:
            raise SerializationError("a stored value cannot be unpickled", why=str(error)) from error


def _same(left: Any, right: Any) -> bool:
    """Equal in value and type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        # JSON keeps the order of keys, so that they can be compared pairwise: a StrEnum equals its string.
        return len(left) == len(right) and all(
            type(mine) is type(other) and mine == other and _same(left[mine], right[other])
            for mine, other in zip(left, right, strict=True)
        )
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return False
    return bool(left == right)


def _brief(error: ValidationError) -> str:
    """Say which fields are wrong, without their contents."""
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
