"""Rows that are refused are found by halves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.postgres.connection.errors import RowRefusal
from outfall.row_logging import RowLog
from outfall.sql.dialect import isolate

REFUSAL = RowRefusal("no", "23514", "a detail")


@pytest.mark.thorough
@given(st.integers(0, 3000), st.sets(st.integers(0, 2999), max_size=12))
def test_the_refused_are_found_in_order_and_the_others_applied_once(count: int, bad: set[int]) -> None:
    applied: list[int] = []
    tries = 0

    def attempt(low: int, high: int) -> RowRefusal | None:
        nonlocal tries
        tries += 1
        if any(low <= number < high for number in bad):
            return REFUSAL
        applied.extend(range(low, high))
        return None

    bad = {number for number in bad if number < count}
    found = [position for position, _ in isolate(0, count, attempt)]
    assert found == sorted(bad)
    assert sorted(applied + found) == list(range(count))
    assert tries <= 1 + 2 * len(bad) * math.ceil(math.log2(max(count, 2)))


def test_rows_that_are_refused_only_beside_each_other_are_all_taken_but_one() -> None:
    taken: set[int] = set()

    def attempt(low: int, high: int) -> RowRefusal | None:
        if len({5, 9} & (taken | set(range(low, high)))) == 2:
            return REFUSAL
        taken.update(range(low, high))
        return None

    assert [position for position, _ in isolate(0, 16, attempt)] == [9]
    assert taken == set(range(16)) - {9}


def test_a_refusal_says_reason_detail_and_code() -> None:
    assert REFUSAL.summary(RowLog("full")) == "no; a detail (SQLSTATE 23514)"
    assert REFUSAL.summary(RowLog()) == "no (SQLSTATE 23514)"
    quoting = RowRefusal("ungültige Eingabe: »geheim«", "22P02", column="id")
    assert quoting.summary(RowLog()) == "invalid text representation in column id (SQLSTATE 22P02)"
