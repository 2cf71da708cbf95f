"""Which record a response is about: the paths in the options, and the function of the Python API, as one function."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.http.transport import Response
from outfall.serde import parse_json


@dataclass(frozen=True)
class ItemResponse:
    """The part of a response for one record."""

    status: int
    """Its HTTP status."""
    reason: str | None = None
    """Why it was not accepted, in the server's words."""
    code: str | None = None
    """The server's code for the reason, such as `mapper_parsing_exception`. Default: the status."""
    excerpt: str | None = None
    """The beginning of the response for this record."""


PerItem = Callable[[Response, int], Sequence[int | ItemResponse | None] | None]
"""Reads the response to a request with the given number of records.

Returns an HTTP status or an `ItemResponse` per record, in order, and `None` for a record that the server did not
process, which is sent again. Returns `None` instead of the list if an error response names no record.
"""


def by_status(path: str) -> PerItem:
    """Read the status of each record at a path such as `items.status`."""
    *where, name = path.split(".")

    def read(response: Response, count: int) -> Sequence[ItemResponse] | None:
        parents = _found(parse_json(response.body), where)
        items = [item for item in parents if isinstance(item, dict) and isinstance(item.get(name), int)]
        if not items and response.status >= 400:
            return None
        return [ItemResponse(item[name], excerpt=json.dumps(item, ensure_ascii=False)) for item in items]

    return read


def by_position(path: str) -> PerItem:
    """Read the position of the first record at fault at a path such as `invalid-event-number`.

    The server has stored the records before it, and has not processed those after it.
    """

    def read(response: Response, count: int) -> Sequence[int | ItemResponse | None] | None:
        if response.status < 400:
            return [response.status] * count
        positions = _found(parse_json(response.body), path.split("."))
        if len(positions) != 1 or type(positions[0]) is not int or not 0 <= positions[0] < count:
            return None
        before = positions[0]
        refused = ItemResponse(response.status, excerpt=response.excerpt())
        return [*[_STORED] * before, refused, *[None] * (count - before - 1)]

    return read


_STORED = 200


def _found(value: Any, path: Sequence[str]) -> list[Any]:
    """Return what is at a path. Lists are gone through, and `*` is any name."""
    if isinstance(value, list):
        return [one for item in value for one in _found(item, path)]
    if not path:
        return [value]
    if not isinstance(value, dict):
        return []
    children = value.values() if path[0] == "*" else [value[path[0]]] if path[0] in value else []
    return [one for child in children for one in _found(child, path[1:])]
