"""Parts that are renamed, removed, added, reordered between restarts."""

from __future__ import annotations

import binascii

import pytest

from outfall.errors import PartsChangedError
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import entries
from tests.unit.support.setups import InPlace
from tests.unit.support.shelf import Shelf, ShelfSink


class Parts:
    """One log and target, written with changing lists of parts."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.recovery = InPlace().recovery
        self._epoch = 0

    def write(self, parts: list[str], *rows: tuple[str, object]) -> None:
        LocalDriver(ShelfSink(self.shelf, parts), self.recovery).run_epoch(self._epoch, [rows])
        self._epoch += 1

    def holds(self) -> dict[str, list[object]]:
        return {name: file.values for name, file in self.shelf.files.items() if file.values}


@pytest.mark.parametrize("parts", [["a"], ["a", "renamed"], ["a", "B"]])
def test_a_part_that_had_state_and_is_gone_is_refused(parts: list[str]) -> None:
    case = Parts()
    case.write(["a", "b"], ("0", 1), ("1", 2))
    before = entries(case.recovery)
    with pytest.raises(PartsChangedError, match="1 parts have a state and are no longer listed: b") as caught:
        case.write(parts, ("0", 3))
    assert caught.value.part == "b"
    assert "list them again" in str(caught.value)
    assert entries(case.recovery) == before
    case.write(["a", "b"], ("0", 4))
    assert case.holds() == {"a": [1, 4], "b": [2]}


def test_many_gone_parts_are_counted_and_some_named() -> None:
    case = Parts()
    case.write([f"p{i}" for i in range(10)], ("0", 1))
    with pytest.raises(PartsChangedError, match=r"9 parts .*: p1, p2, p3, p4, p5\. "):
        case.write(["p0"])


def test_a_new_part_starts_fresh() -> None:
    case = Parts()
    case.write(["a"], ("0", 1))
    case.write(["a", "b"], ("1", 2))
    case.write(["a", "b"], ("0", 3), ("1", 4))
    assert case.holds() == {"a": [1, 3], "b": [2, 4]}


def test_reordered_parts_keep_their_states_and_change_their_keys() -> None:
    case = Parts()
    case.write(["a", "b"], ("0", 1), ("1", 2))
    case.write(["b", "a"], ("0", 3), ("1", 4))
    assert case.holds() == {"a": [1, 4], "b": [2, 3]}


def test_parts_are_indexed_as_listed_not_sorted() -> None:
    case = Parts()
    names = [f"part_{i}" for i in range(12)]
    case.write(names, *[(str(i), i) for i in range(12)])
    assert case.holds() == {f"part_{i}": [i] for i in range(12)}


def test_any_number_of_a_part_function_is_taken_modulo() -> None:
    case = Parts()
    case.write(["a", "b", "c"], ("-1", "minus one"), ("3", "three"), ("1000000", "million"))
    assert case.holds() == {"c": ["minus one"], "a": ["three"], "b": ["million"]}


def test_the_default_part_function_is_crc_32() -> None:
    sink = InPlace().sink()
    default = super(ShelfSink, sink).part_fn
    assert default("123456789") == 0xCBF43926
    assert default("zwölf") == binascii.crc32("zwölf".encode())


def test_values_keep_their_order_within_a_part() -> None:
    case = Parts()
    case.write(["a"], *[("0", i) for i in (3, 1, 2)])
    assert case.holds() == {"a": [3, 1, 2]}


def test_uncommitted_rows_of_a_part_that_the_replay_does_not_touch_are_cut() -> None:
    case = Parts()
    with crash_at("before PREPARED"):
        case.write(["a", "b"], ("0", "lost"), ("1", "lost"))
    case._epoch = 0
    case.write(["a", "b"], ("1", "kept"))
    assert case.holds() == {"b": ["kept"]}
