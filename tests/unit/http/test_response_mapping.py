"""What responses mean for the records of their request, and what it means that there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outfall.async_sink import RefusedEntry, RequestOutcome
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.http.items import ItemResponse, by_position, by_status
from outfall.http.records import HttpRecord
from outfall.http.response_mapping import AnswerReader
from outfall.http.statuses import Statuses
from outfall.http.transport import ExchangeError, Fault, Response
from tests.unit.support.http_script import RECORDS, URL, options, reader


def read(
    status: int, body: bytes = b"", headers: dict[str, str] | None = None, **given: Any
) -> RequestOutcome[HttpRecord]:
    return reader(**given).read(Response(status, headers or {}, body), RECORDS)


def test_accepted_records_are_accepted() -> None:
    assert read(202) == RequestOutcome()


def test_a_retry_keeps_the_request_together_and_minds_what_the_server_asks() -> None:
    outcome = read(429, b"slow down", {"retry-after": "36000"})
    assert outcome.retry == RECORDS
    assert (outcome.together, outcome.after, outcome.hold_host) == (True, 300.0, True)
    assert (outcome.code, outcome.excerpt) == ("429", "slow down")
    assert read(503).after is None
    assert not read(503).hold_host


@pytest.mark.parametrize(
    ("status", "given"),
    [(413, {}), (400, {"statuses": "400=split"}), (422, {"idempotency": "item", "key_column": "id"})],
)
def test_a_refused_request_is_halved_where_no_record_is_stored_twice(status: int, given: dict[str, Any]) -> None:
    outcome = read(status, b"bad", **given)
    assert (outcome.split, outcome.retry, outcome.code) == (RECORDS, (), str(status))


@pytest.mark.parametrize("status", [400, 422, 418])
@pytest.mark.parametrize("given", [{}, {"statuses": "400=dead_letter,422=dead_letter,418=dead_letter"}])
def test_a_refused_request_whose_record_is_not_named_stops_the_query(status: int, given: dict[str, Any]) -> None:
    """A part of it may be stored: halves would store rows twice, and dead letters would divert stored rows."""
    outcome = read(status, b"bad", **given)
    assert not outcome.split
    assert not outcome.dead
    assert not outcome.retry
    assert "responded with" in str(outcome.error)
    assert "3 records" in str(outcome.error)
    assert "split" in str(outcome.error)
    assert "failed_item" in str(outcome.error)
    alone = reader(**given).read(Response(status, {}, b"bad"), RECORDS[:1])
    assert alone.split == RECORDS[:1]


def test_the_response_to_a_refused_request_names_the_record() -> None:
    """As Splunk's HTTP Event Collector: the events before are stored, the others were not processed."""
    splunk = b'{"text":"Invalid data format","code":6,"invalid-event-number":1}'
    outcome = read(400, splunk, per_item=by_position("invalid-event-number"))
    assert [refusal.entry for refusal in outcome.dead] == [RECORDS[1]]
    assert (outcome.unprocessed, outcome.retry, outcome.split, outcome.error) == ([RECORDS[2]], [], (), None)
    for body in (b"{}", b"no JSON", b'{"invalid-event-number":3}', b'{"invalid-event-number":true}', b"[" * 100_000):
        unnamed = read(400, body, per_item=by_position("invalid-event-number"))
        assert isinstance(unnamed.error, TargetError)
        assert "does not name" in str(unnamed.error)
    assert read(200, b"{}", per_item=by_position("x")) == RequestOutcome(retry=[], dead=[], unprocessed=[])


@pytest.mark.parametrize("status", [200, 400])
def test_statuses_of_records_are_read_at_a_path(status: int) -> None:
    items = {
        "items": [{"create": {"status": 201}}, {"create": {"status": 400, "error": "no date"}}, {"x": {"status": 429}}]
    }
    outcome = read(status, json.dumps(items).encode(), per_item=by_status("items.*.status"))
    ((refusal,), (again,)) = outcome.dead, outcome.retry
    assert (refusal.entry, again) == (RECORDS[1], RECORDS[2])
    assert "no date" in (refusal.excerpt or "")


def test_a_record_at_fault_is_not_accepted_because_its_response_counts_as_complete() -> None:
    outcome = read(400, statuses="400=complete", per_item=lambda answer, count: [200, 400, 200])
    assert [refusal.entry for refusal in outcome.dead] == [RECORDS[1]]


def test_a_refused_request_without_a_record_at_fault_is_not_accepted() -> None:
    for found in ([200, 200, 200], None, [200]):
        assert isinstance(read(400, per_item=lambda answer, count, found=found: found).error, TargetError)
    stopped = read(400, per_item=lambda answer, count: [200, 401, 400])
    assert "401" in str(stopped.error)


def test_a_forbidden_request_with_a_pause_is_the_limit_of_a_rate() -> None:
    outcome = read(403, headers={"retry-after": "7"})
    assert (outcome.retry, outcome.after, outcome.hold_host) == (RECORDS, 7.0, True)
    assert "403=retry" in str(read(403).error)
    assert read(403, headers={"retry-after": "7"}, statuses="403=stop").error is not None


@pytest.mark.parametrize(
    ("status", "do"), [(401, "credentials"), (403, "permission"), (404, "url"), (501, "statuses="), (207, "per_item")]
)
def test_what_every_request_would_meet_stops_the_query(status: int, do: str) -> None:
    outcome = read(status, b"no such luck")
    assert isinstance(outcome.error, TargetError)
    assert f"responded with {status}" in str(outcome.error)
    assert do in str(outcome.error)


def test_items_are_taken_one_by_one() -> None:
    def statuses(answer: Response, count: int) -> list[int]:
        return [int(text) for text in answer.body.split()]

    outcome = read(207, b"201 429 400", {"retry-after": "3"}, per_item=statuses)
    assert outcome.retry == [RECORDS[1]]
    assert outcome.dead == [RefusedEntry(RECORDS[2], f"{URL} responded with 400 for this record", "400")]
    assert (outcome.reason, outcome.code) == (f"{URL} responded with 429 for this record", "429")
    assert (outcome.after, outcome.together) == (3.0, False)
    assert read(200, b"200 200 200", per_item=statuses) == RequestOutcome(retry=[], dead=[], unprocessed=[])
    assert isinstance(read(200, b"200 401 200", per_item=statuses).error, TargetError)
    assert isinstance(read(200, b"200", per_item=statuses).error, ConfigurationError)
    assert read(503, b"", per_item=statuses).retry == RECORDS


def test_each_record_has_its_own_reason_code_and_excerpt() -> None:
    def items(answer: Response, count: int) -> list[int | ItemResponse]:
        found = [next(iter(item.values())) for item in json.loads(answer.body)["items"]]
        errors = [item.get("error", {}) for item in found]
        return [
            ItemResponse(item["status"], error.get("reason"), error.get("type"), json.dumps(error) if error else None)
            for item, error in zip(found, errors, strict=True)
        ]

    def refused(kind: str, reason: str, status: int = 400) -> dict[str, object]:
        return {"create": {"status": status, "error": {"type": kind, "reason": reason}}}

    # As OpenSearch's _bulk answers.
    body = {
        "items": [refused("mapper", "no date"), refused("exists", "doc 7", 422), refused("busy", "queue full", 429)]
    }
    outcome = reader(per_item=items).read(Response(200, {}, json.dumps(body).encode()), RECORDS)
    assert [(refusal.entry, refusal.code) for refusal in outcome.dead] == [
        (RECORDS[0], "mapper"),
        (RECORDS[1], "exists"),
    ]
    assert [refusal.reason.rpartition(": ")[2] for refusal in outcome.dead] == ["no date", "doc 7"]
    assert [json.loads(refusal.excerpt or "")["reason"] for refusal in outcome.dead] == ["no date", "doc 7"]
    assert (outcome.retry, outcome.code) == ([RECORDS[2]], "busy")
    assert "queue full" in (outcome.reason or "")


def test_what_a_server_says_back_of_a_secret_is_hidden_in_what_it_says_of_a_record() -> None:
    def items(answer: Response, count: int) -> list[ItemResponse]:
        return [ItemResponse(400, "not for hunter2", "hunter2", "hunter2!")]

    made = AnswerReader(
        options(), Statuses(keyed=True, template=False), items, lambda text: text.replace("hunter2", "***")
    )
    (refusal,) = made.read(Response(200, {}, b"{}"), RECORDS[:1]).dead
    assert "hunter2" not in repr(refusal)
    assert refusal.excerpt == "***!"


def test_answers_that_have_no_body_by_their_status_are_not_asked_for_items() -> None:
    def never(answer: Response, count: int) -> list[int]:
        raise AssertionError

    assert read(204, per_item=never) == read(205, per_item=never) == RequestOutcome()


def test_a_per_item_that_raises_is_named_with_what_it_could_not_read() -> None:
    error = read(200, b"<html>hunter2", per_item=lambda answer, count: json.loads(answer.body)).error
    assert isinstance(error, TargetError)
    assert "per_item cannot read the response of https://api.example/events with status 200" in str(error)
    assert "the message is '<html>" in str(error)
    assert "JSONDecodeError in test_response_mapping.py, line" in str(error)
    assert error.__cause__ is None, "its text may quote what the server says"


def test_items_of_an_answer_that_was_cut_are_not_guessed() -> None:
    made = reader(per_item=lambda answer, count: [200] * count)
    assert isinstance(made.read(Response(200, {}, b"", whole=False), RECORDS).error, TargetError)
    assert reader().read(Response(200, {}, b"", whole=False), RECORDS) == RequestOutcome()


@pytest.mark.parametrize(
    ("error", "stops"),
    [
        (ExchangeError(Fault.NOT_SENT, "refused"), False),
        (ExchangeError(Fault.LOST, "reset"), False),
        (ExchangeError(Fault.LATE, "silent"), False),
        (ExchangeError(Fault.CONFIGURATION, "no such host"), True),
        (TransientError("no token"), False),
        (ConfigurationError("bad client"), True),
    ],
)
def test_what_it_means_that_there_is_no_answer(error: ExchangeError | OutfallError, stops: bool) -> None:
    outcome = reader().failed(error, RECORDS)
    assert (outcome.error is not None) == stops
    assert outcome.together == (not stops)
    assert list(outcome.retry) == ([] if stops else RECORDS)
