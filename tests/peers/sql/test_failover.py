"""A replica that lags is promoted: each row is in the table once, or the query is refused before a row moves."""

from __future__ import annotations

import itertools

import pytest

from outfall.testing.recovery_contract import once_at
from tests.peers.support.failovers import LOST, MODES, MOMENTS, TABLE, Pair, lose_rows, refusals, write

SLICE = {("append", "after open target", "after open target"), ("upsert", "before BEGIN", "sql: publishing")}


@pytest.mark.parametrize(
    ("mode", "lost", "moment"),
    [
        pytest.param(*case, marks=[] if case in SLICE else pytest.mark.long)
        for case in itertools.product(MODES, LOST, MOMENTS)
    ],
)
def test_rows_that_a_failover_loses_are_missed_before_others_are_written(
    pair: Pair, recovery: str, mode: str, lost: str, moment: str
) -> None:
    """A query that went on would write a newer epoch to the ledger, and nothing would tell the loss any more."""
    lose_rows(pair, recovery, MODES[mode], lost, moment)


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=[] if each == "sql: before COMMIT" else pytest.mark.long) for each in MOMENTS]
)
def test_a_promotion_that_lost_nothing_goes_on_with_each_row_once(pair: Pair, recovery: str, moment: str) -> None:
    target = pair.table(TABLE)
    sink = target.sink()
    write(sink, recovery, 0, 0)

    def fail_over() -> None:
        pair.catch_up()
        pair.fail_over()

    with once_at(moment, fail_over):
        errors = refusals(sink, recovery, 1, 1, 2)
    assert len(errors) < 3, errors
    assert write(sink, recovery, 2, 3)
    assert target.ids() == [0, 1, 2, 3]
