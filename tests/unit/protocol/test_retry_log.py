"""Warnings of retries: the first, then one at intervals."""

from __future__ import annotations

import logging

import pytest

from outfall.retry_log import RetryLog
from outfall.testing.local_engine import FakeClock


@pytest.fixture
def retries() -> RetryLog:
    return RetryLog(logging.getLogger("outfall.test"), interval=30)


def test_the_first_retry_is_a_warning_with_attempt_reason_and_time_left(
    retries: RetryLog, caplog: pytest.LogCaptureFixture
) -> None:
    retries.retry("db:5432", "publishing t", attempt=1, reason="connection refused", left=299.6)
    retries.retry("db2:5432", "publishing t", attempt=1, attempts=4, reason="connection refused", left=None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "db:5432: publishing t failed (attempt 1, 300 s left) and is retried: connection refused"),
        ("WARNING", "db2:5432: publishing t failed (attempt 1 of 4) and is retried: connection refused"),
    ]


def test_no_text_of_a_server_controls_a_terminal_or_begins_a_line(
    retries: RetryLog, caplog: pytest.LogCaptureFixture
) -> None:
    retries.retry("db:5432", "publishing t", attempt=1, reason="down\x1b[2J\n10:00 INFO all is well", left=None)
    assert caplog.records[0].getMessage().isprintable()


def test_further_retries_are_warned_of_at_intervals_with_their_number(
    retries: RetryLog, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    for attempt in range(1, 62):
        retries.retry("db", "publishing t", attempt=attempt, reason="down", left=300 - clock.now(), now=clock.now())
        clock.sleep(1)
    assert [record.getMessage().partition("t failed ")[2] for record in caplog.records] == [
        "(attempt 1, 300 s left) and is retried: down",
        "(attempt 31, 270 s left) and is retried: down; 29 more retries since the last warning",
        "(attempt 61, 240 s left) and is retried: down; 29 more retries since the last warning",
    ]


def test_a_second_outage_is_warned_of_although_the_first_was_shortly_before(
    retries: RetryLog, caplog: pytest.LogCaptureFixture
) -> None:
    for attempt, now in ((1, 0.0), (2, 1.0), (3, 3.0), (1, 8.0), (2, 9.0)):
        retries.retry("db", "publishing t", attempt=attempt, reason="down", left=None, now=now)
    assert [record.getMessage().partition("t failed ")[2] for record in caplog.records] == [
        "(attempt 1) and is retried: down",
        "(attempt 1) and is retried: down; 2 more retries since the last warning",
    ]


def test_one_outage_is_warned_of_once_however_long_its_waits_and_however_much_fails_anew(
    retries: RetryLog, caplog: pytest.LogCaptureFixture
) -> None:
    # One waits longer and longer; others begin to fail at the same time.
    for attempt, now in ((1, 0.0), (2, 4.0), (1, 8.9), (3, 12.0), (4, 29.0)):
        retries.retry("db", "publishing t", attempt=attempt, reason="down", left=None, now=now)
    assert len(caplog.records) == 1
