"""The table of statuses, and `Retry-After`."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.async_sink.responses import retry_after
from outfall.http.statuses import TABLE, Statuses, Verdict, parse_exceptions

KEYED = Statuses(keyed=True, template=False)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([200, 201, 202, 204, 299], Verdict.COMPLETE),
        ([207], Verdict.PER_ITEM),
        ([307, 308], Verdict.FOLLOW),
        ([300, 301, 302, 303, 304], Verdict.STOP),
        ([400, 422, 418, 499], Verdict.DEAD_LETTER),
        ([413], Verdict.SPLIT),
        ([401, 403, 404, 405, 410, 415], Verdict.STOP),
        ([408, 409, 423, 425, 429], Verdict.RETRY),
        ([500, 502, 503, 504, 507, 599], Verdict.RETRY),
        ([501, 505], Verdict.STOP),
        ([0, 100, 199, 600, 999], Verdict.STOP),
    ],
)
def test_what_follows_from_a_status(statuses: list[int], verdict: Verdict) -> None:
    assert [KEYED.verdict(status) for status in statuses] == [verdict] * len(statuses)


def test_a_conflict_waits_only_for_our_own_first_try() -> None:
    assert KEYED.verdict(409) is Verdict.RETRY
    assert Statuses(keyed=False, template=False).verdict(409) is Verdict.DEAD_LETTER


def test_an_address_that_is_not_there_is_the_records_fault_where_the_record_makes_it() -> None:
    assert Statuses(keyed=True, template=True).verdict(404) is Verdict.DEAD_LETTER
    assert Statuses(keyed=True, template=True).verdict(405) is Verdict.STOP
    assert KEYED.verdict(404) is Verdict.STOP


def test_every_status_has_a_line_and_every_line_is_in_the_documentation() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "http.md").read_text()
    table = page.partition("<!-- statuses -->\n")[2].partition("<!-- /statuses -->")[0]
    lines = [f"| {rule.statuses} | `{rule.verdict.value}` | {rule.why} |\n" for rule in TABLE]
    assert table == "".join(["| Status | Verdict | Reason |\n", "|---|---|---|\n", *lines])
    bare = Statuses(keyed=True, template=False)
    assert all(isinstance(bare.verdict(status), Verdict) for status in range(200, 600))


def test_no_final_refusal_counts_as_accepted() -> None:
    accepted = [status for status in range(1000) if KEYED.verdict(status) is Verdict.COMPLETE]
    assert set(accepted) == set(range(200, 300)) - {207}


def test_exceptions_beat_the_table() -> None:
    exceptions = parse_exceptions("404=dead_letter, 409 = complete")
    assert exceptions == parse_exceptions({404: "dead_letter", 409: Verdict.COMPLETE})
    statuses = Statuses(keyed=True, template=False, exceptions=exceptions)
    assert [statuses.verdict(status) for status in (404, 409, 405)] == [
        Verdict.DEAD_LETTER, Verdict.COMPLETE, Verdict.STOP,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("36000", 300.0),
        ("9" * 18, 300.0),
        ("9" * 400, None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Saturday, 21-Nov-26 12:00:30 GMT", 30.0),
        ("Sat Nov 21 12:00:30 2026", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("Sat, 21 Nov 2026 22:00:00 GMT", 300.0),
        ("Sat, 99 Nov 2026 22:00:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    assert retry_after(value, longest=300.0, now=lambda: now) == seconds


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_no_retry_after_raises_or_leaves_its_bounds(value: str) -> None:
    seconds = retry_after(value, longest=300.0)
    assert seconds is None or (0 <= seconds <= 300 and math.isfinite(seconds))


def test_an_error_of_a_record_is_not_complete_because_its_response_is() -> None:
    statuses = Statuses(
        keyed=True, template=False, exceptions=parse_exceptions("400=complete, 500=complete, 409=complete")
    )
    assert [statuses.verdict(status) for status in (400, 500, 409)] == [Verdict.COMPLETE] * 3
    found = [statuses.of_record(status) for status in (400, 500, 409, 201)]
    assert found == [Verdict.DEAD_LETTER, Verdict.RETRY, Verdict.COMPLETE, Verdict.COMPLETE]
