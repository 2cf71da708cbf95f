"""States and committables as bytes: what comes back, and what is refused."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from outfall.errors import SerializationError
from outfall.serde import JsonSerializer, ModelSerializer, PickleSerializer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int


class Offset(BaseModel):
    offset: int
    name: str = "none"


def same(left: Any, right: Any) -> bool:
    """Equal in value and type, by their text."""
    return repr(left) == repr(right)


@given(JSON)
def test_json_gives_plain_values_back(value: Any) -> None:
    serializer = JsonSerializer()
    assert same(serializer.deserialize(serializer.version, serializer.serialize(value)), value)


@given(
    st.recursive(
        JSON | st.tuples(st.integers()) | st.binary() | st.decimals() | st.floats() | st.dates() | st.complex_numbers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(), inner, max_size=3),
        max_leaves=5,
    )
)
def test_json_gives_any_value_back_or_refuses_it(value: Any) -> None:
    serializer = JsonSerializer()
    try:
        data = serializer.serialize(value)
    except SerializationError:
        return
    assert same(serializer.deserialize(1, data), value)


@pytest.mark.parametrize(
    "value",
    [
        (1,),
        [(1,)],
        {"a": (1,)},
        {1: "a"},
        {None: 1},
        {True: 1},
        {Colour.RED: 1},
        Colour.RED,
        Number.ONE,
        Point(1),
        OrderedDict(a=1),
        b"a",
        bytearray(b"a"),
        {1, 2},
        math.nan,
        [math.nan],
        Decimal(1),
        datetime(2026, 1, 1, tzinfo=UTC),
        pytest.param(object(), id="object"),
        Offset(offset=1),
        "\ud800",
        pytest.param(lambda: None, id="lambda"),
        1j,
        range(3),
    ],
    ids=repr,
)
def test_json_refuses_what_it_would_change(value: Any) -> None:
    with pytest.raises(SerializationError, match=f"a value of type {type(value).__name__} ") as caught:
        JsonSerializer().serialize(value)
    assert "PickleSerializer()" in str(caught.value)


def test_json_refuses_what_contains_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(SerializationError):
        JsonSerializer().serialize(loop)


def test_json_refuses_what_is_too_deep() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SerializationError):
        JsonSerializer().serialize(deep)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nul"])
def test_damaged_json_is_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="is not JSON"):
        JsonSerializer().deserialize(1, data)


@given(st.integers(), st.text(st.characters(codec="utf-8")))
def test_a_model_comes_back(offset: int, name: str) -> None:
    serializer = ModelSerializer(Offset)
    value = Offset(offset=offset, name=name)
    assert serializer.deserialize(1, serializer.serialize(value)) == value


def test_a_model_reads_its_older_versions_by_defaults() -> None:
    assert ModelSerializer(Offset, version=2).deserialize(1, b'{"offset":3}') == Offset(offset=3)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"offset":"x"}', b"[]", b"\xff"])
def test_a_damaged_model_is_refused_without_its_content(data: bytes) -> None:
    with pytest.raises(SerializationError, match="a stored Offset is damaged"):
        ModelSerializer(Offset).deserialize(1, data)


def test_a_damaged_model_does_not_show_its_content() -> None:
    with pytest.raises(SerializationError) as caught:
        ModelSerializer(Offset).deserialize(1, b'{"offset":"hunter2"}')
    assert "hunter2" not in str(caught.value)
    assert "offset" in str(caught.value)


@given(st.binary() | st.tuples(st.integers(), st.sets(st.text())) | st.datetimes())
def test_pickle_gives_anything_back(value: Any) -> None:
    serializer = PickleSerializer()
    assert serializer.deserialize(serializer.version, serializer.serialize(value)) == value


def test_pickle_refuses_what_cannot_be_pickled() -> None:
    with pytest.raises(SerializationError, match="a function cannot be pickled"):
        PickleSerializer().serialize(lambda: None)


@pytest.mark.parametrize("data", [b"", b"junk", b"cnot_there\nthing\n."])
def test_damaged_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="cannot be unpickled"):
        PickleSerializer().deserialize(1, data)


@pytest.mark.parametrize("version", [0, -1, 2, 99])
@pytest.mark.parametrize("serializer", [JsonSerializer(), PickleSerializer(), ModelSerializer(Offset)])
def test_an_unknown_version_is_an_error_that_names_both(serializer: Any, version: int) -> None:
    with pytest.raises(SerializationError, match=f"reads versions 1 to 1 but found version {version}") as caught:
        serializer.deserialize(version, b"{}")
    assert "run the release that wrote the value" in str(caught.value)


def test_json_that_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(SerializationError, match="a stored value is not JSON"):
        JsonSerializer().deserialize(1, b"[" * 200_000)
    with pytest.raises(SerializationError, match="a stored Offset is damaged"):
        ModelSerializer(Offset).deserialize(1, b"[" * 200_000)
