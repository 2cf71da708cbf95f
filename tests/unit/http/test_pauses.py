"""What `HttpSink` does when a server asks for a pause, in virtual time (scenarios H3 and H7)."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import uuid
from typing import Any

import pytest

from outfall.async_sink import FixedLimiter, HostState
from outfall.contexts import WriterInitContext
from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.http import HttpSink, Response
from outfall.http.transport import ExchangeError, Fault
from outfall.testing.virtual_time import VirtualEventQueue
from tests.unit.support.http_in_time import TimedSink, opened

ROWS = [{"id": number} for number in range(20)]


def busy(asks: str) -> Response:
    return Response(429, {"retry-after": asks}, b"try later")


def ids(bodies: list[bytes]) -> list[int]:
    return [row["id"] for body in bodies for row in json.loads(body)]


@pytest.mark.parametrize(
    ("asks", "longest", "again"),
    [
        ("600", "5 minutes", 300.0),
        ("36000", "10 minutes", 300.0),
        ("600", "1 minute", 60.75),
        ("7", "5 minutes", 7.75),
        ("0", "5 minutes", 0.75),
        ("-1", "5 minutes", 0.75),
    ],
)
def test_a_pause_that_a_server_asks_for_is_capped_and_waited_for(asks: str, longest: str, again: float) -> None:
    partition, server = opened(lambda now: busy(asks) if now == 0 else Response(200, {}, b""), max_retry_after=longest)
    partition.write_batch(ROWS)
    partition.flush(True)
    assert server.times == [0.0, pytest.approx(again)]
    assert partition.metrics.counts["sent"] == 20


def test_a_server_that_asks_for_ten_minutes_again_and_again_ends_in_an_error_that_says_so() -> None:
    partition, server = opened(lambda now: busy("600"))
    partition.write_batch(ROWS)
    with pytest.raises(
        TransientError,
        match=r"after 300 s \(entries: 20, attempts: 2\).*responded with 429, and requested a pause of 300 s.*later",
    ):
        partition.flush(True)
    assert server.times == [0.0, 300.0]


def test_who_comes_after_an_error_keeps_the_pause_too() -> None:
    options: dict[str, Any] = {"max_retries": 0}
    state = HostState(FixedLimiter(10))
    partition, server = opened(lambda now: busy("60"), sink=TimedSink(state, **options))
    partition.write_batch(ROWS)
    with pytest.raises(TransientError, match="requested a pause of 60 s"):
        partition.flush(True)
    assert server.times == [0.0]

    again, server = opened(
        lambda now: Response(200, {}, b""),
        sink=TimedSink(state, **options),
        events=partition._events,  # type: ignore[arg-type]
    )
    again.write_batch(ROWS)
    again.flush(True)
    assert server.times == [60.25]


def test_no_pause_outlasts_the_retry_deadline() -> None:
    """A header of any size holds the process for no longer, also where the error ends the task."""
    options: dict[str, Any] = {"max_retries": 0, "retry_deadline": "3 seconds"}
    state = HostState(FixedLimiter(10))
    partition, _ = opened(lambda now: busy("9" * 18), sink=TimedSink(state, **options))
    partition.write_batch(ROWS)
    with pytest.raises(TransientError, match="requested a pause of 300 s"):
        partition.flush(True)
    again, server = opened(
        lambda now: Response(200, {}, b""),
        sink=TimedSink(state, **options),
        events=partition._events,  # type: ignore[arg-type]
    )
    again.write_batch(ROWS)
    again.flush(True)
    assert server.times == [3.25]


def test_tasks_that_were_asked_to_wait_do_not_come_back_in_a_herd() -> None:
    """Forty processes hear the same `Retry-After`; each has a request that was refused and others behind it."""
    chance = random.Random(5)
    moments: list[float] = []
    for _ in range(40):
        partition, server = opened(
            lambda now: busy("30") if now < 30.25 else Response(200, {}, b""),
            max_batch_size=5, max_in_flight_requests=1, chance=chance,
        )  # fmt: skip
        partition.write_batch(ROWS)
        partition.flush(True)
        first, *later = server.times
        assert first == 0
        assert ids(server.bodies[1:]) == list(range(20))
        assert min(later) >= 30.25
        moments += later
    moments.sort()
    assert moments[-1] < 33
    fullest = max(sum(1 for _ in group) for _, group in itertools.groupby(moments, key=lambda moment: int(moment * 10)))
    assert len(moments) == 160
    assert fullest < 40


# What a worker process knows of a host, from one task and epoch to the next.


def host() -> str:
    """One that no other test has asked: what is known of it lasts as long as the process."""
    return f"https://{uuid.uuid4()}.example"


def test_the_next_task_keeps_the_pause_that_one_was_asked_for_and_other_hosts_do_not() -> None:
    url, options = f"{host()}/events", {"max_retries": 0}
    events = VirtualEventQueue()
    partition, _ = opened(lambda now: busy("30"), sink=HttpSink(url, **options).delegate, events=events)  # type: ignore[arg-type]
    partition.write_batch(ROWS)
    with pytest.raises(TransientError):
        partition.flush(True)

    times: dict[str, list[float]] = {}
    for name, address in (("other host", f"{host()}/events"), ("same host", url.replace("events", "others"))):
        sink = pickle.loads(pickle.dumps(HttpSink(address, **options).delegate))  # type: ignore[arg-type]
        task, server = opened(lambda now: Response(200, {}, b""), sink=sink, events=events)
        task.write_batch(ROWS)
        task.flush(True)
        times[name] = server.times
    assert times == {"other host": [0.25], "same host": [30.25]}


def test_the_next_task_goes_on_with_the_limit_that_one_has_learned() -> None:
    def accept(now: float) -> Response:
        return Response(200, {}, b"")

    options: dict[str, Any] = {"max_batch_size": 1, "max_in_flight_requests": 20}
    sink = HttpSink(f"{host()}/events", **options).delegate
    learning, _ = opened(accept, sink=sink)
    assert learning.limit == 1
    learning.write_batch(ROWS)
    learning.flush(True)
    assert learning.limit > 1
    going_on, _ = opened(accept, sink=pickle.loads(pickle.dumps(sink)))
    assert going_on.limit == learning.limit
    elsewhere, _ = opened(accept, sink=HttpSink(f"{host()}/events", **options).delegate)
    assert elsewhere.limit == 1


# What errors say, whatever the server answers.


CONTEXT = WriterInitContext("events", "i" * 16, generation=1, epoch=7, part=None, attempt=0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Response(400, {}, b"distance is below nought"), "rejected .400.*message 'distance is below nought'"),
        (Response(403, {}, b"not yours"), "responded with 403.*The message is 'not yours'"),
        (Response(503, {}, b"maintenance until noon"), "responded with 503, with the message 'maintenance until noon'"),
        (ExchangeError(Fault.CONFIGURATION, "no such host"), "No such host"),
        (ConfigurationError("no token"), "no token"),
    ],
)
def test_errors_have_the_place_and_what_the_server_says(answer: Response | Exception, text: str) -> None:
    def behave(now: float) -> Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    partition, _ = opened(behave, sink=TimedSink(max_retries=0).bind(CONTEXT))
    partition.write_batch(ROWS[:1])
    with pytest.raises(OutfallError, match=rf"(?s)^\[step 'events', epoch 7\] .*{text}") as caught:
        partition.flush(True)
    assert str(caught.value).count("epoch 7") == 1


def test_a_request_that_may_not_time_out_says_where() -> None:
    partition, _ = opened(lambda now: Response(200, {}, b""), sink=TimedSink(fail_on_timeout=True).bind(CONTEXT))
    partition.submit_request_entries = lambda entries, result: None  # type: ignore[method-assign]
    partition._loop._submit = partition.submit_request_entries
    partition.write_batch(ROWS)
    with pytest.raises(TransientError, match=r"^\[step 'events', epoch 7\] the destination did not respond"):
        partition.flush(True)
