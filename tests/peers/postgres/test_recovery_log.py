"""The log in PostgreSQL when a standby that lags is promoted: nothing goes on in silence, and no row is lost."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.errors import RecordError, TargetAheadError
from outfall.postgres import PostgresRecoveryConfig
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import location
from tests.integration.support.sql import rows
from tests.peers.support.postgres_pair import Pair
from tests.unit.support.command import done

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"


def write(target: Target, recovery: PostgresRecoveryConfig, epoch: int, **options: Any) -> None:
    """Run a batch job, which may skip numbers, with one row: the number of its epoch."""
    epochs = EpochOptions(any_later=True)
    LocalDriver(target.sink(**options), recovery, options=epochs).run_epoch(epoch, [rows(epoch)])


@pytest.fixture
def target(pair: Pair) -> Target:
    return Target(pair.new_database(), TABLE)


@pytest.fixture
def recovery(target: Target) -> PostgresRecoveryConfig:
    """The log, in the database of the rows."""
    return location(target.dsn, timeout=10)


def test_a_target_that_was_opened_on_the_new_server_with_a_begin_of_the_old_one_begins_anew(
    pair: Pair, target: Target, recovery: PostgresRecoveryConfig
) -> None:
    """The BEGIN is lost, and the record of the target is not: both ended with epoch 0, and the log is reset."""
    write(target, recovery, 0)
    pair.lag()
    with once_at("after BEGIN", pair.fail_over), pytest.raises(RecordError, match=r"outfall accept|is missing"):
        write(target, recovery, 1)
    done("accept", recovery.url(), "sink", "--yes")
    with pytest.raises(
        TargetAheadError, match=r"generation 5, epoch 0.*generation 1, completed epoch 0.*outfall reset"
    ):
        write(target, recovery, 1)
    done("reset", recovery.url(), "sink", "--yes")
    write(target, recovery, 1, on_existing="resume")
    assert target.run("SELECT id FROM t ORDER BY id") == [(0,), (1,)]
