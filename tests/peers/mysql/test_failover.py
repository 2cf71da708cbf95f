"""A replica that lags is promoted: each row is in the table once, or the query is refused before a row moves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from outfall.errors import EpochAbandonedError, OutfallError, TargetLostError, TransientError
from outfall.testing.recovery_contract import once_at
from tests.integration.mysql.support import Target, rows, run
from tests.peers.support.replica_pair import Pair

TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)"
MODES: dict[str, dict[str, Any]] = {"append": {}, "upsert": {"write_mode": "upsert", "key_columns": "id"}}

MOMENTS = [
    "before BEGIN", "after BEGIN", "sql: opening", "after open target", "sql: publishing", "sql: staged",
    "after PREPARED", "after COMMITTING", "sql: before COMMIT", "sql: after COMMIT", "before COMPLETED",
    "after COMPLETED",
]  # fmt: skip
"""When the primary is lost in epoch 2, of which the replica has nothing."""

LOST = ["before BEGIN", "after open target"]
"""The step of epoch 1 since which the replica has received nothing: epoch 1 is lost with its BEGIN, or without it."""

SLICE = {("append", "after open target", "after open target"), ("upsert", "before BEGIN", "sql: publishing")}


def refusals(sink: Any, recovery: str, epoch: int, *ids: int) -> list[OutfallError]:
    """Start a query again until it completes an epoch; return the errors until then, at most three."""
    errors: list[OutfallError] = []
    for _ in range(3):
        try:
            run(sink, recovery, epoch, rows(*ids))
        except OutfallError as error:
            errors.append(error)
        else:
            break
    return errors


@pytest.mark.parametrize(
    ("mode", "lost", "moment"),
    [
        pytest.param(*case, marks=[] if case in SLICE else pytest.mark.long)
        for case in itertools.product(MODES, LOST, MOMENTS)
    ],
)
def test_rows_that_a_failover_loses_are_missed_before_others_are_written(
    pair: Pair, recovery_path: str, mode: str, lost: str, moment: str
) -> None:
    """A query that went on would write a newer epoch to the ledger, and nothing would tell the loss any more."""
    target = Target(pair.client, pair.client.new_database(), TABLE)
    sink = target.sink(**MODES[mode])
    run(sink, recovery_path, 0, rows(0))
    with once_at(lost, pair.lag):
        run(sink, recovery_path, 1, rows(1, 11))
    with once_at(moment, pair.fail_over):
        errors = refusals(sink, recovery_path, 2, 2)
    if not errors:
        # Epoch 2 was completed where it is lost, which the next one finds.
        errors = refusals(sink, recovery_path, 3, 3)
    told = [error for error in errors if not isinstance(error, EpochAbandonedError | TransientError)]
    assert told
    assert {type(error) for error in told} == {TargetLostError}
    assert len(errors) == 3
    assert target.ids() == [0]


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=[] if each == "sql: before COMMIT" else pytest.mark.long) for each in MOMENTS]
)
def test_a_promotion_that_lost_nothing_goes_on_with_each_row_once(pair: Pair, recovery_path: str, moment: str) -> None:
    target = Target(pair.client, pair.client.new_database(), TABLE)
    sink = target.sink()
    run(sink, recovery_path, 0, rows(0))

    def fail_over() -> None:
        pair.catch_up()
        pair.fail_over()

    with once_at(moment, fail_over):
        errors = refusals(sink, recovery_path, 1, 1, 2)
    assert len(errors) < 3, errors
    assert run(sink, recovery_path, 2, rows(3))
    assert target.ids() == [0, 1, 2, 3]


def test_a_replica_that_lags_is_named_and_not_taken_for_a_server_that_lost_rows(pair: Pair, recovery_path: str) -> None:
    target = Target(pair.client, pair.client.new_database(), TABLE)
    run(target.sink(), recovery_path, 0, rows(0))
    pair.lag()
    run(target.sink(), recovery_path, 1, rows(1))
    pair.lead_to(pair.replica)
    with pytest.raises(TransientError, match=r"read-only.*connect to the primary"):
        run(target.sink(retry_deadline=0.5), recovery_path, 2, rows(2))
    pair.lead_to(pair.primary)
    run(target.sink(), recovery_path, 2, rows(2))
    assert target.ids() == [0, 1, 2]
