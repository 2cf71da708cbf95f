"""What errors, warnings and dead letters say of an answer, and how much of the rows they show."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.async_sink import AsyncSinkPartition, RefusedEntry, RequestOutcome
from outfall.async_sink.outcomes import said
from outfall.errors import CapabilityError, TargetError, TransientError, ValueRefusedError
from tests.unit.support.async_destination import Destination, Letters, Service, TextSink, opened

SECRET = "the row itself"


def always(outcome: RequestOutcome[str]) -> Service:
    return lambda entries, number: (0.1, outcome)


def send(partition: AsyncSinkPartition[str], row: str = "a") -> None:
    partition.write_batch([row])
    partition.flush(True)


@pytest.mark.parametrize(("log_rows", "shown"), [("none", False), ("keys", False), ("full", True)])
def test_a_warning_of_a_retry_shows_rows_only_if_they_may_be_logged(
    log_rows: str, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [RequestOutcome(retry=(SECRET,), reason="busy", excerpt=f"cannot take {SECRET}"), RequestOutcome()]
    partition, _ = opened(lambda entries, number: (0.01, answers[number]), log_rows=log_rows)
    partition.write_batch([SECRET])
    partition.flush(True)
    (warning,) = caplog.records
    assert "a request with one entry failed (attempt 1" in warning.getMessage()
    assert "busy" in warning.getMessage()
    assert (SECRET in warning.getMessage()) == shown
    assert ("cannot take" in warning.getMessage()) == shown


def test_an_entry_that_an_outcome_lists_twice_is_an_error_of_the_sink() -> None:
    for outcome in (
        RequestOutcome(retry=("a",), split=("a",)),
        RequestOutcome(retry=("a",), dead=(RefusedEntry("a", "wrong"),)),
        RequestOutcome(split=("a",), dead=(RefusedEntry("a", "wrong"),)),
    ):
        partition, _ = opened(always(outcome))
        with pytest.raises(CapabilityError, match="1 entries in an outcome do not belong to its request"):
            send(partition)


@pytest.mark.parametrize(("hold", "after", "held"), [(True, 7.0, True), (False, 7.0, False), (True, None, False)])
def test_a_pause_for_the_host_outlives_the_task_that_gives_up(hold: bool, after: float | None, held: bool) -> None:
    outcome = RequestOutcome(retry=("a",), reason="busy", after=after, hold_host=hold)
    destination = Destination(lambda entries, number: (1.0, outcome))
    sink = TextSink(destination, max_retries=0)
    with pytest.raises(TransientError, match="Last response: busy"):
        send(sink.open())
    assert sink.state.retry_gate.wait(destination.events.now()) == (7.0 if held else 0.0)


@pytest.mark.parametrize(
    ("given", "do"),
    [
        ({"max_retries": 2, "retry_deadline": 900}, "raise or omit max_retries"),
        ({"retry_deadline": 1}, "raise retry_deadline"),
        ({"max_retries": 50, "retry_deadline": 1}, "raise retry_deadline"),
    ],
)
def test_an_outage_names_the_option_that_ended_the_retries(given: dict[str, Any], do: str) -> None:
    outcome = RequestOutcome(retry=("a",), reason="busy", after=2.4, excerpt="come back")
    partition, _ = opened(always(outcome), log_rows="full", **given)
    with pytest.raises(TransientError) as caught:
        send(partition)
    text = str(caught.value)
    assert f"For longer outages {do}" in text
    assert "busy, and requested a pause of 2 s, with the message 'come back'" in text
    assert "entries: 1" in text


def test_a_single_entry_that_is_split_is_refused_with_the_answers_words() -> None:
    letters = Letters()
    outcome = RequestOutcome(split=("a",), reason="it is wrong", code="400", excerpt="no")
    for reason, expected in (("it is wrong", "it is wrong"), (None, "the destination rejected it")):
        partition, _ = opened(always(_with(outcome, reason)))
        partition.dead_letters_to(letters)
        send(partition)
        letter = letters.all.pop()
        assert (letter.row, letter.reason, letter.code, letter.excerpt) == ("a", expected, "400", "no")
        assert partition.metrics.counts["dead_letters"] == 1


def _with(outcome: RequestOutcome[str], reason: str | None) -> RequestOutcome[str]:
    return RequestOutcome(split=outcome.split, reason=reason, code=outcome.code, excerpt=outcome.excerpt)


def test_without_a_place_for_them_a_refused_row_fails_the_query() -> None:
    outcome = RequestOutcome(dead=(RefusedEntry("a", "it is wrong", "400", "no"),))
    partition, _ = opened(always(outcome), log_rows="full")
    with pytest.raises(ValueRefusedError, match=r"is rejected \(400\)") as caught:
        send(partition)
    assert "with the message 'no'" in str(caught.value)


@pytest.mark.parametrize(("log_rows", "shown"), [("none", False), ("full", True)])
def test_an_unknown_error_is_shown_only_without_rows(log_rows: str, shown: bool) -> None:
    outcome: RequestOutcome[str] = RequestOutcome(error=KeyError(SECRET))
    partition, _ = opened(always(outcome), log_rows=log_rows)
    with pytest.raises(TargetError, match="permanently rejected a request") as caught:
        send(partition, SECRET)
    assert (SECRET in str(caught.value)) == shown
    assert (caught.value.__cause__ is not None) == shown


def test_a_long_message_is_cut() -> None:
    assert said(None) == said("  ") == ""
    assert said("x" * 400) == f", with the message {'x' * 300!r}"
