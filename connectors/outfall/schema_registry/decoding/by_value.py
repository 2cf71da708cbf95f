"""Decodes values one by one, so that each one that cannot be read is found, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

_LONGEST = 200


class UnreadableTypeError(ValueError):
    """A type has no column, or a reader's type does not read a writer's."""


class ValueMismatchError(ValueError):
    """A value does not fit the reader's type, although the types do."""


class Decoder(Protocol):
    """Decodes the values of one writer's schema."""

    def column(self, values: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of encoded values, and why some of them, by position, cannot be read: these are NULL.

        Each begins at `start` of its bytes: 0, or `HEAD_SIZE` of whole messages.
        """


def by_value(
    values: Sequence[bytes],
    start: int,
    decode: Callable[[bytes], Any],
    convert: Callable[[list[Any]], pa.Array],
    kind: pa.DataType,
) -> tuple[pa.Array, dict[int, str]]:
    """Return a column of this type, and why some values, by position, cannot be read: these are NULL.

    `convert` makes a column of what `decode` returns. Both may raise any error: of one value, it is that value's.
    """
    found: list[Any] = []
    errors: dict[int, str] = {}
    for index, each in enumerate(values):
        try:
            found.append(decode(each[start:]))
        except Exception as error:
            found.append(None)
            errors[index] = _reason(error)
    try:
        return _converted(found, errors, convert), errors
    except Exception:
        pieces = [_piece(index, each, errors, convert, kind) for index, each in enumerate(found)]
        return pa.concat_arrays(pieces), errors


def _piece(
    index: int, value: Any, errors: dict[int, str], convert: Callable[[list[Any]], pa.Array], kind: pa.DataType
) -> pa.Array:
    """Convert a value alone, to find out whether it is the one that does not fit."""
    if index not in errors:
        try:
            return convert([value])
        except Exception as error:
            errors[index] = _reason(error)
    return pa.nulls(1, kind)


def _converted(found: list[Any], errors: dict[int, str], convert: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Convert decoded values. Those with errors are NULL, whatever the schema says."""
    if not errors:
        return convert(found)
    column = convert([each for index, each in enumerate(found) if index not in errors])
    places = iter(range(len(found)))
    return column.take(pa.array([None if index in errors else next(places) for index in range(len(found))], pa.int64()))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:_LONGEST]
    if text and isinstance(error, ValueMismatchError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
