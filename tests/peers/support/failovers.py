"""Epochs across a failover to a replica that lags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from outfall.errors import EpochAbandonedError, OutfallError, TargetLostError, TransientError
from tests.integration.support.sql import MortalServer, Table, listening, rows, run

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"
MODES: dict[str, dict[str, Any]] = {"append": {}, "upsert": {"write_mode": "upsert", "key_columns": "id"}}
MOMENTS = [
    "before BEGIN", "after BEGIN", "sql: opening", "after open target", "sql: publishing", "sql: staged",
    "after PREPARED", "after COMMITTING", "sql: before COMMIT", "sql: after COMMIT", "before COMPLETED",
    "after COMPLETED",
]  # fmt: skip
"""When the primary is lost in epoch 2, of which the replica has nothing."""

LOST = ["before BEGIN", "after open target"]
"""The step of epoch 1 since which the replica has received nothing: epoch 1 is lost with its BEGIN, or without it."""


class Pair(Protocol):
    """A primary and its replica, behind one address that leads to whichever takes writes."""

    @property
    def primary(self) -> MortalServer: ...

    def table(self, ddl: str) -> Table:
        """Make a table in a database of its own, at the address of both."""

    def lag(self) -> None:
        """Let the replica have all until now, and nothing more."""

    def catch_up(self) -> None:
        """Let the replica receive, and wait until it has all that the primary has committed."""

    def fail_over(self) -> None:
        """Kill the primary, and promote the replica with what it has."""


def write(sink: Any, recovery: str, epoch: int, *ids: int) -> Any:
    """Run an epoch of these rows, whatever the delivery."""
    made = rows(*ids)
    return run(sink, recovery, epoch, [("k", row) for row in made] if getattr(sink.options, "parts", 0) else made)


def once(wanted: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Return a listener that acts when a step is reached for the first time."""
    acts = iter([act])

    def listener(step: str) -> None:
        if step == wanted:
            for each in acts:
                each()

    return listener


def refusals(sink: Any, recovery: str, epoch: int, *ids: int) -> list[OutfallError]:
    """Start a query again until it completes an epoch; return the errors until then, at most three."""
    errors: list[OutfallError] = []
    for _ in range(3):
        try:
            write(sink, recovery, epoch, *ids)
        except OutfallError as error:
            errors.append(error)
        else:
            break
    return errors


def lose_rows(pair: Pair, recovery: str, options: dict[str, Any], lost: str, moment: str) -> None:
    """Lose epoch 1 by a failover in epoch 2: the query is refused before another row is written."""
    target = pair.table(TABLE)
    sink = target.sink(**options)
    write(sink, recovery, 0, 0)
    with listening(once(lost, pair.lag)):
        write(sink, recovery, 1, 1, 11)
    with listening(once(moment, pair.fail_over)):
        errors = refusals(sink, recovery, 2, 2)
    if pair.primary.running:  # this delivery has no such step
        pair.fail_over()
    if not errors:
        # Epoch 2 was completed where it is lost, which the next one finds.
        errors = refusals(sink, recovery, 3, 3)
    # A task whose connection ended may be told first, or an epoch whose staged rows are lost.
    told = [error for error in errors if not isinstance(error, EpochAbandonedError | TransientError)]
    assert told
    assert {type(error) for error in told} == {TargetLostError}
    assert len(errors) == 3
    assert target.ids() == [0]
