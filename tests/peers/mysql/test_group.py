"""Group Replication with one primary that is killed, paused or cut off: each row once, and what is confirmed stays."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from outfall.errors import EpochAbandonedError, OutfallError, RecordError, TransientError
from outfall.recovery import history
from outfall.testing.recovery_contract import once_at
from tests.integration.mysql.support import Target
from tests.integration.support.sql import listening, rows, run
from tests.integration.support.sql_logs import STEPS
from tests.peers.mysql.test_recovery_log import write
from tests.peers.support.failovers import MODES, MOMENTS, TABLE, refusals
from tests.peers.support.group_replication import Group
from tests.unit.support.command import done

SLICE = {("append", "sql: before COMMIT")}


@pytest.mark.parametrize(
    ("mode", "moment"),
    [
        pytest.param(mode, moment, marks=[] if (mode, moment) in SLICE else pytest.mark.long)
        for mode in MODES
        for moment in MOMENTS
    ],
)
def test_a_primary_that_is_killed_leaves_each_row_once(
    group: Group, recovery_path: str, mode: str, moment: str
) -> None:
    target = Target(group.client, group.client.new_database(), TABLE)
    sink = target.sink(**MODES[mode])
    run(sink, recovery_path, 0, rows(0))
    with once_at(moment, group.fail_over):
        errors = refusals(sink, recovery_path, 1, 1, 2)
    assert len(errors) < 3, errors
    assert {type(error) for error in errors} <= {TransientError, EpochAbandonedError}
    assert run(sink, recovery_path, 2, rows(3))
    assert target.ids() == [0, 1, 2, 3]


def test_a_primary_that_wakes_up_commits_nothing_that_the_new_one_has_written(group: Group, recovery_path: str) -> None:
    """It is paused before the COMMIT, and its driver with it, while another driver finishes the epoch elsewhere."""
    target = Target(group.client, group.client.new_database(), TABLE)
    run(target.sink(), recovery_path, 0, rows(0))
    old = group.primary()
    seen: list[str] = []

    def replace(step: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        seen.append(step)
        if seen[-2:] == ["sql: moving", "sql: before COMMIT"] and seen.count("sql: moving") == 1:
            group.fail_over(pausing=True)
            other = threading.Thread(target=run, args=(target.sink(), recovery_path, 1, rows(1, 2)))
            other.start()
            other.join()
            assert target.ids() == [0, 1, 2]
            old.resume()

    with listening(replace), suppress(OutfallError):
        run(target.sink(), recovery_path, 1, rows(1, 2))
    assert seen.count("sql: moving") == 1
    group.lead_to(old)
    with pytest.raises(TransientError, match=r"read-only|is ONLINE in"):
        run(target.sink(retry_deadline=0.5), recovery_path, 2, rows(3))
    group.restore()
    run(target.sink(), recovery_path, 2, rows(3))
    assert target.ids() == [0, 1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["sql: opening", "sql: moving"])
def test_a_primary_that_is_alone_is_given_up_with_advice(group: Group, recovery_path: str, moment: str) -> None:
    """No limit of the server ends a COMMIT that waits for the other nodes."""
    target = Target(group.client, group.client.new_database(), TABLE)
    sink = target.sink(statement_timeout=20, retry_deadline=1)
    run(sink, recovery_path, 0, rows(0))
    # After the timeout and a minute more, in which the server itself ends no statement.
    with once_at(moment, group.cut_off), pytest.raises(OutfallError, match="reaches most of the others"):
        run(sink, recovery_path, 1, rows(1, 2))
    group.restore()
    assert len(refusals(sink, recovery_path, 1, 1, 2)) < 3
    assert target.ids() == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_a_log_goes_on_at_the_new_primary_once_it_is_accepted(group: Group, step: str) -> None:
    """What the old primary has confirmed is there, and no entry that it has not."""
    recovery = group.client.location(group.client.new_database(), timeout=30)
    write(recovery, 0)
    with once_at(step, group.fail_over), pytest.raises(RecordError, match="outfall accept"):
        write(recovery, 1)
    assert "last completed epoch here: 0" in done("accept", recovery.url(), "sink", "--yes")
    write(recovery, 1, 2)
    assert [summary.epoch for summary in history(recovery)] == [0, 1, 2]
