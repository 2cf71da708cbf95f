"""Servers that fail in all the ways that servers fail: what is sent again, and that it is accepted once (H1 to H9)."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPDigestAuth
from urllib3.util import Retry

from outfall.errors import TargetError, TransientError, ValueRefusedError
from outfall.file import FileSink
from outfall.http import HttpSink, Response
from outfall.testing import LocalDriver
from tests.integration.http.trial import QUICK, WAYS, Trial, first, options_of, refused
from tests.integration.support.http_receiver import HttpReceiver, Received, Reply
from tests.one_each import one_each

ATOMIC = "400=split,422=split"
"""For a server that stores nothing of a request that it refuses."""
PASSING = [
    refused(500),
    refused(503, headers={"Retry-After": "0"}),
    refused(429, headers={"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
    refused(408),
    refused(425),
    refused(409),
    Reply(accepts=False, manner="reset"),
]


@pytest.mark.parametrize(("fault", "way"), one_each(PASSING, WAYS))
def test_what_passes_is_sent_again_under_the_same_key(trial: Trial, fault: Reply, way: dict[str, Any]) -> None:
    # The first request opens a connection, so that the second one goes the short way.
    counts = trial.run(first(Reply(), fault, fault), max_batch_size=5, max_in_flight_requests=1, **options_of(way))
    assert trial.ids == list(range(10))
    assert len(trial.keys) == 4
    assert len(set(trial.keys[1:])) == 1
    assert trial.keys[0] not in (None, trial.keys[1])
    assert counts["sent"] == 10


def test_an_outage_is_warned_of_once_in_a_while_and_its_requests_are_counted(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    counts = trial.run(first(*[refused(503, body=b"down for repair")] * 6), rows=5)
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    url = trial.receiver.url(trial.name)
    assert warning == (
        f"HttpSink({url!r}, method='POST', body='array'): a request with 5 entries failed (attempt 1 of 9, 300 s left)"
        f" and is retried: {url} responded with 503"
    )
    assert (counts["retries"], counts["requests"]) == (6, 7)


def test_what_passes_is_sent_again_after_the_retries_of_a_sessions_own_adapter(trial: Trial) -> None:
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(total=2, status_forcelist=[503], allowed_methods=None)))
    trial.run(first(*[refused(503)] * 4), session=session)
    assert trial.ids == list(range(10))
    assert len(trial.keys) == 5
    assert len(set(trial.keys)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_reply_brings_the_same_key_and_nothing_twice_where_keys_are_kept(
    trial: Trial, way: dict[str, Any]
) -> None:
    lost = Reply(manner="reset")
    trial.run(
        first(Reply(), lost, lost), max_batch_size=5, max_in_flight_requests=1, keeps_keys=True, **options_of(way)
    )
    assert trial.ids == list(range(10))
    assert (trial.target.repeated, trial.target.misused) == (2, 0)


@pytest.mark.parametrize(("status", "way"), one_each([400, 413, 422], WAYS))
def test_a_poisoned_record_is_found_and_the_others_are_sent_once(
    trial: Trial, status: int, way: dict[str, Any]
) -> None:
    def behave(request: Received) -> Reply:
        poisoned = any(record["id"] == 37 for record in request.records)
        return refused(status, body=b"37 is bad") if poisoned else Reply()

    with pytest.raises(ValueRefusedError, match=rf"is rejected \({status}\).*37 is bad"):
        trial.run(behave, rows=100, max_in_flight_requests=1, keeps_keys=True, statuses=ATOMIC, **options_of(way))
    # Nothing stands behind it yet: without dead letters the query stops there.
    assert trial.ids == list(range(37))
    assert (trial.target.repeated, len(set(trial.keys))) == (0, len(trial.keys))


@pytest.mark.parametrize("way", [WAYS[0], *(pytest.param(way, marks=pytest.mark.thorough) for way in WAYS[1:])])
def test_the_poisoned_record_becomes_a_dead_letter_and_the_other_99_are_sent_once_in_order(
    receiver: HttpReceiver, tmp_path: Path, way: dict[str, Any]
) -> None:
    def behave(request: Received) -> Reply:
        poisoned = any(record["id"] == 37 for record in request.records)
        return refused(400, body=b"37 is bad") if poisoned else Reply()

    name = receiver.new_target(behave, keeps_keys=True)
    sink = HttpSink(
        receiver.url(name), dead_letter=FileSink(tmp_path / "dead"), max_in_flight_requests=1, statuses=ATOMIC,
        **(QUICK | options_of(way)),
    )  # fmt: skip
    result = LocalDriver(sink, str(tmp_path / "log")).run_epoch(0, [[{"id": number} for number in range(100)]])
    target = receiver.targets[name]
    assert [record["id"] for record in target.accepted] == [number for number in range(100) if number != 37]
    (letter,) = [
        json.loads(line) for path in (tmp_path / "dead").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    assert (letter["row"], letter["code"], letter["excerpt"]) == ('{"id":37}', "400", "37 is bad")
    assert result.counts["dead_letters"] == 1


class Collector:
    """As Splunk's HTTP Event Collector: it stores the events before the first bad one, and says where that one is."""

    def __init__(self, bad: set[int], *, named: bool = True) -> None:
        self.bad = bad
        self.named = named

    def __call__(self, request: Received) -> Reply:
        ids = [record["id"] for record in request.records]
        at = next((position for position, each in enumerate(ids) if each in self.bad), None)
        if at is None:
            return Reply()
        said = {"text": "Invalid data format", "code": 6} | ({"invalid-event-number": at} if self.named else {})
        return Reply(400, accepts=lambda record: record["id"] in ids[:at], body=json.dumps(said).encode())


@pytest.mark.parametrize("bad", [{37}, pytest.param({0, 1, 50, 198}, marks=pytest.mark.thorough)])
def test_a_server_that_stores_the_events_before_a_bad_one_gets_each_row_once(
    receiver: HttpReceiver, tmp_path: Path, bad: set[int]
) -> None:
    name = receiver.new_target(Collector(bad))
    sink = HttpSink(
        receiver.url(name), body="ndjson", failed_item="invalid-event-number",
        dead_letter=FileSink(tmp_path / "dead"), **QUICK,
    )  # fmt: skip
    result = LocalDriver(sink, str(tmp_path / "log")).run_epoch(0, [[{"id": number} for number in range(199)]])
    found = Counter(record["id"] for record in receiver.targets[name].accepted)
    assert found == Counter(set(range(199)) - bad)
    assert (result.counts["dead_letters"], result.counts["sent"]) == (len(bad), 199 - len(bad))
    assert len(receiver.targets[name].requests) <= 2 * len(bad) + 1


def test_a_server_that_stores_a_part_and_names_nothing_stops_the_query(receiver: HttpReceiver, tmp_path: Path) -> None:
    name = receiver.new_target(Collector({37}, named=False))
    sink = HttpSink(receiver.url(name), body="ndjson", dead_letter=FileSink(tmp_path / "dead"), **QUICK)
    with pytest.raises(TargetError, match=r"400 for a request with 199 records.*does not name.*failed_item"):
        LocalDriver(sink, str(tmp_path / "log")).run_epoch(0, [[{"id": number} for number in range(199)]])
    assert len(receiver.targets[name].requests) == 1
    assert not list((tmp_path / "dead").glob("*.jsonl"))


def test_a_dead_letter_sink_that_is_down_stops_the_query(receiver: HttpReceiver, tmp_path: Path) -> None:
    down = HttpSink(receiver.url(receiver.new_target(lambda request: refused(403))))
    name = receiver.new_target(lambda request: refused(400))
    sink = HttpSink(receiver.url(name), dead_letter=down, **QUICK)
    with pytest.raises(TargetError, match="responded with 403"):
        LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])


def test_too_large_a_request_is_halved_until_it_fits(trial: Trial) -> None:
    trial.run(lambda request: refused(413) if len(request.records) > 3 else Reply(), rows=100, max_in_flight_requests=1)
    assert trial.ids == list(range(100))


@pytest.mark.parametrize("status", [401, 403, 404, 301, 302, 303, 501, 505, 207])
def test_what_no_retry_can_mend_stops_the_query_at_once(trial: Trial, status: int) -> None:
    with pytest.raises(TargetError, match=f"responded with {status}"):
        trial.run(lambda request: refused(status, headers={"Location": "/login"}))
    assert len(trial.target.requests) == 1


def test_an_error_that_lasts_ends_in_an_error_that_says_so(trial: Trial) -> None:
    with pytest.raises(TransientError, match="responded with 503") as caught:
        trial.run(lambda request: refused(503, body=b"maintenance until noon"), max_retries=2)
    assert "attempts: 2)" in str(caught.value) or "attempts: 3)" in str(caught.value)
    assert len(trial.target.requests) == 3
    assert len(set(trial.keys)) == 1


@pytest.mark.parametrize("status", [200, 207])
def test_of_a_request_that_was_accepted_in_part_only_the_rest_is_sent_again(trial: Trial, status: int) -> None:
    def behave(request: Received) -> Reply:
        def takes(record: Any) -> bool:
            return request.number > 0 or record["id"] % 3 != 0

        found = [201 if takes(record) else 429 for record in request.records]
        return Reply(status, accepts=takes, body=" ".join(map(str, found)).encode())

    def per_item(answer: Response, count: int) -> list[int]:
        return [int(text) for text in answer.body.split()]

    trial.run(behave, per_item=per_item)
    assert Counter(trial.ids) == Counter(range(10))
    assert [len(request.records) for request in trial.target.requests] == [10, 4]


def test_a_server_that_digests_is_satisfied_by_an_auth_object_of_requests(trial: Trial) -> None:
    challenge = 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'

    def behave(request: Received) -> Reply:
        if "authorization" in request.headers:
            return Reply()
        return refused(401, headers={"WWW-Authenticate": challenge})

    trial.run(behave, auth=HTTPDigestAuth("me", "hunter2"))
    assert trial.ids == list(range(10))
    assert len(set(trial.keys)) == 1


def test_rows_that_name_their_address(trial: Trial) -> None:
    trial.run(lambda request: Reply(), path="/{text}", body="record", method="PUT", rows=3)
    paths = sorted(request.path.split("/", 2)[2] for request in trial.target.requests)
    assert paths == ["%C3%A40", "%C3%A41", "%C3%A42"]


@pytest.mark.parametrize(("body", "compression"), one_each(["array", "wrapped", "ndjson"], ["none", "gzip", "zstd"]))
def test_bodies_arrive_as_they_were_written(trial: Trial, body: Any, compression: Any) -> None:
    trial.run(lambda request: Reply(), rows=30, body=body, compression=compression, max_batch_size=7)
    assert sorted(trial.ids) == list(range(30))
    assert {record["text"] for record in trial.target.accepted} == {f"ä{number}" for number in range(30)}


@pytest.mark.parametrize("size", [2_500_000, pytest.param(25_000_000, marks=pytest.mark.long)])
def test_fifty_megabytes_and_a_server_that_refuses_them(receiver: HttpReceiver, tmp_path: Path, size: int) -> None:
    name = receiver.new_target(first(refused(413)))
    limits = {"max_batch_size_in_bytes": "64 MiB", "max_record_size_in_bytes": "64 MiB", "request_timeout": 120}
    sink = HttpSink(receiver.url(name), **(QUICK | limits))
    rows = [{"id": number, "text": "x" * size} for number in range(2)]
    LocalDriver(sink, str(tmp_path)).run_epoch(0, [rows])
    assert sorted(record["id"] for record in receiver.targets[name].accepted) == [0, 1]
    assert max(len(request.body) for request in receiver.targets[name].requests) > 2 * size


@pytest.mark.thorough
@pytest.mark.parametrize("idempotency", ["row", "content"])
def test_nothing_is_lost_or_doubled_in_a_storm_where_keys_are_kept(
    trial: Trial, tmp_path: Path, idempotency: Any
) -> None:
    """Resets before and after the record was taken, 500s, 429s, 409s; and then all of it again, cut in another way."""
    chance = random.Random(7)
    faults = [
        Reply(manner="reset"), Reply(accepts=False, manner="reset"), refused(500), refused(429), refused(409),
        Reply(manner="close"), refused(503, headers={"Retry-After": "0"}),
    ]  # fmt: skip
    name = trial.receiver.new_target(
        lambda request: chance.choice(faults) if chance.random() < 0.3 else Reply(), keeps_keys=True
    )
    named = {"key_column": "id"} if idempotency == "row" else {}
    sink = HttpSink(
        trial.receiver.url(name), body="record", idempotency=idempotency,
        **(QUICK | named | {"max_retries": 30}),
    )  # fmt: skip
    rows = [{"id": number} for number in range(200)]
    driver = LocalDriver(sink, str(tmp_path / "log"))
    ticket = driver.coordinator().begin(0)
    driver.run_tasks(ticket, 0, [rows])
    # The driver is lost before it could record anything; the next one writes the epoch anew.
    result = LocalDriver(sink, str(tmp_path / "log")).run_epoch(0, [rows[100:][::-1], rows[:40], [], rows[40:100]])
    target = trial.receiver.targets[name]
    assert Counter(record["id"] for record in target.accepted) == Counter(range(200))
    assert target.repeated >= 200
    assert target.misused == 0
    assert result.counts["sent"] == 200


def test_equal_rows_are_not_taken_for_one(trial: Trial, tmp_path: Path) -> None:
    name = trial.receiver.new_target(keeps_keys=True)
    sink = HttpSink(trial.receiver.url(name), body="record", idempotency="content", **QUICK)
    rows = [{"id": 1}] * 5 + [{"id": 2}] * 3
    for order in (rows, rows[::-1]):
        driver = LocalDriver(sink, str(tmp_path / "log"))
        driver.run_tasks(driver.coordinator().begin(0), 0, [order])
    assert Counter(record["id"] for record in trial.receiver.targets[name].accepted) == {1: 5, 2: 3}


def test_an_outage_ends_in_recovery_and_a_hold_is_for_everybody(trial: Trial) -> None:
    trial.run(first(*[refused(429, headers={"Retry-After": "0"})] * 6), rows=40, max_batch_size=5, limiter="fixed")
    assert sorted(trial.ids) == list(range(40))
