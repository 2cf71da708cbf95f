"""A replica that lags is promoted: each row is in the table once, or the query is refused before a row moves."""

from __future__ import annotations

import pytest

from outfall.errors import TransientError
from tests.integration.mysql.support import Target
from tests.integration.support.sql import rows, run
from tests.peers.support.failovers import TABLE
from tests.peers.support.replica_pair import Pair


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
