"""Serializers that turn states and committables into bytes which later releases can read."""

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


def parse_json(text: str | bytes, **more: Any) -> Any:
    """Parse JSON that someone else may have written or damaged.

    Args:
        text: The JSON.
        more: Arguments of `json.loads`.

    Raises:
        ValueError: It is not JSON, or nested more deeply than Python parses.
    """
    try:
        return json.loads(text, **more)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class SimpleVersionedSerializer(ABC, Generic[T]):
    """Serializes values with a version (Flink's `SimpleVersionedSerializer`).

    The version is stored with the bytes. A newer serializer must read every older version.
    """

    @property
    def version(self) -> int:
        """The version that `serialize` writes: 1, until a format changes."""
        return 1

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Serialize a value.

        Raises:
            SerializationError: The value cannot be serialized.
        """

    @abstractmethod
    def deserialize(self, version: int, data: bytes) -> T:
        """Deserialize a value.

        Args:
            version: The version that was stored with the bytes.
            data: The result of `serialize`.

        Raises:
            SerializationError: The version is unknown, or the bytes are damaged.
        """

    def check_version(self, version: int) -> None:
        """Reject a version below 1 or above the current one.

        Raises:
            SerializationError: `version` is one of these.
        """
        if not 1 <= version <= self.version:
            raise SerializationError(
                f"{type(self).__name__} reads versions 1 to {self.version} but found version {version}",
                do="run the release that wrote the value, or a newer one",
            )


class JsonSerializer(SimpleVersionedSerializer[Any]):
    """JSON for plain values; the default for states of sinks without a serializer.

    Rejects values that JSON does not restore with the same value and type: tuples, integer keys, NaN, objects.
    """

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
            return parse_json(data)
        except ValueError as error:
            raise SerializationError("a stored value is not JSON", why=str(error)) from error

    def _refused(self, value: Any) -> SerializationError:
        return SerializationError(
            f"a value of type {type(value).__name__} does not survive a round trip through JSON",
            do="use types of JSON (a list instead of a tuple, a string instead of a date), or return another serializer"
            " from state_serializer() (SupportsStateSerializer), writer_state_serializer() or committable_serializer();"
            " outfall.serde.PickleSerializer() is sufficient if no one else can write to the recovery location",
        )


class ModelSerializer(SimpleVersionedSerializer[M]):
    """JSON for a pydantic model. The built-in connectors use it."""

    def __init__(self, model: type[M], version: int = 1) -> None:
        """Serialize instances of `model`.

        Args:
            model: The model. Its defaults must make older versions readable. If it ignores unknown fields, which is
                pydantic's default, older releases can read it too.
            version: The lowest version that a reader must know: raise it if a new field must not be ignored.
        """
        self._model = model
        self._version = version

    @property
    def version(self) -> int:
        """The version given to the constructor."""
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
    """Pickle, which must be chosen explicitly.

    With pickle, anyone who can write to the recovery location can run code in the query. Use it only if no one else
    can.
    """

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
    """Return whether two values are recursively equal in value and type."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        # JSON preserves the order of keys, so compare them pairwise: a StrEnum equals its string.
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
    """Return the invalid fields without their contents."""
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
