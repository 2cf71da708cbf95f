"""`HttpSink` against servers that fail in all the ways that servers fail, over real sockets (scenarios H1 to H9)."""

from __future__ import annotations

import base64
import html
import json
import quopri
import random
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

import pytest
import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPDigestAuth
from urllib3.util import Retry

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.file import FileSink
from outfall.http import HttpSink, Response
from outfall.http.client import close_idle_connections
from outfall.testing import LocalDriver
from tests.integration.support.http_receiver import Behaviour, HttpReceiver, Received, Reply, Target

QUICK: dict[str, Any] = {"retry_backoff": 0.001, "retry_max_backoff": 0.01, "max_retries": 8, "retry_budget": 1.0}


class Trial:
    """A target that behaves as told, and a sink that writes to it."""

    def __init__(self, receiver: HttpReceiver, directory: Path) -> None:
        self.receiver = receiver
        self.directory = directory
        self.name = ""

    def run(
        self, behaviour: Behaviour, *, rows: int = 10, path: str = "", keeps_keys: bool = False, **options: Any
    ) -> dict[str, int]:
        """Write one epoch and return its counts."""
        self.name = self.receiver.new_target(behaviour, keeps_keys=keeps_keys)
        sink = HttpSink(self.receiver.url(self.name) + path, **(QUICK | options))
        values = [{"id": number, "text": f"ä{number}"} for number in range(rows)]
        return dict(LocalDriver(sink, str(self.directory / self.name)).run_epoch(0, [values]).counts)

    @property
    def target(self) -> Target:
        return self.receiver.targets[self.name]

    @property
    def ids(self) -> list[int]:
        return [record["id"] for record in self.target.accepted]

    @property
    def keys(self) -> list[str | None]:
        return [request.key for request in self.target.requests]


@pytest.fixture
def trial(receiver: HttpReceiver, tmp_path: Path) -> Trial:
    return Trial(receiver, tmp_path)


def first(*replies: Reply) -> Behaviour:
    """Response the first requests so, and accept the others."""
    return lambda request: replies[request.number] if request.number < len(replies) else Reply()


def refused(status: int, **more: Any) -> Reply:
    return Reply(status, accepts=False, **more)


WAYS: list[dict[str, Any]] = [{}, {"compression": "gzip"}, {"session": True}]
"""The three ways of a request: without a thread of its own, with one, and through `requests`."""


def options_of(way: dict[str, Any]) -> dict[str, Any]:
    return {"session": requests.Session()} if "session" in way else way


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "fault",
    [
        refused(500),
        refused(503, headers={"Retry-After": "0"}),
        refused(429, headers={"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
        refused(408),
        refused(425),
        refused(409),
        Reply(accepts=False, manner="reset"),
    ],
)
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
        f"HttpSink({url!r}, method='POST', body='array'): a request of 5 entries failed (attempt 1 of 9, 300 s left)"
        f" and is tried again: {url} answered 503, and says 'down for repair'"
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("manner", ["close", "chunked", "until_close"])
def test_answers_of_every_kind_and_connections_that_end_after_them(
    trial: Trial, manner: str, way: dict[str, Any]
) -> None:
    def behave(request: Received) -> Reply:
        return Reply(body=b"x" * 1000, manner=manner)

    trial.run(behave, rows=50, max_batch_size=1, keeps_keys=True, **options_of(way))
    assert sorted(trial.ids) == list(range(50))


def test_connections_are_kept_between_requests_and_epochs(trial: Trial) -> None:
    before = trial.receiver.connections
    for _ in range(3):
        trial.run(lambda request: Reply(), rows=20, max_batch_size=1, max_in_flight_requests=1)
    assert trial.receiver.connections - before == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("manner", ["dribble", "silent"])
def test_a_server_that_answers_too_slowly_is_left_in_time(
    trial: Trial, silence: Callable[[Received], Reply], manner: str, way: dict[str, Any]
) -> None:
    slow = silence if manner == "silent" else lambda request: Reply(accepts=False, manner=manner)
    started = time.monotonic()
    trial.run(
        lambda request: slow(request) if request.number == 1 else Reply(),
        max_batch_size=5, max_in_flight_requests=1, request_timeout_ms=400, **options_of(way),
    )  # fmt: skip
    assert sorted(set(trial.ids)) == list(range(10))
    assert time.monotonic() - started < 60


@pytest.fixture
def silence() -> Iterator[Callable[[Received], Reply]]:
    """A behaviour that says nothing until the test is over."""
    over = threading.Event()

    def behave(request: Received) -> Reply:
        # In the server's lock, so that nobody else is served: only until the client has given up.
        over.wait(1.0)
        return Reply(accepts=False, manner="reset")

    yield behave
    over.set()


@pytest.mark.parametrize("way", WAYS)
def test_of_an_endless_answer_only_the_beginning_is_read(trial: Trial, way: dict[str, Any]) -> None:
    trial.run(
        lambda request: Reply(manner="endless"), max_batch_size=5, max_in_flight_requests=1,
        max_response_bytes=10_000, **options_of(way),
    )  # fmt: skip
    assert trial.ids == list(range(10))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_poisoned_record_is_found_and_the_others_are_sent_once(
    trial: Trial, status: int, way: dict[str, Any]
) -> None:
    def behave(request: Received) -> Reply:
        poisoned = any(record["id"] == 37 for record in request.records)
        return refused(status, body=b"37 is bad") if poisoned else Reply()

    with pytest.raises(ValueRefusedError, match=rf'"id":37.* is refused \({status}\)'):
        trial.run(behave, rows=100, max_in_flight_requests=1, keeps_keys=True, **options_of(way))
    # Nothing stands behind it yet: without dead letters the query stops there.
    assert trial.ids == list(range(37))
    assert (trial.target.repeated, len(set(trial.keys))) == (0, len(trial.keys))


@pytest.mark.parametrize("way", WAYS)
def test_the_poisoned_record_becomes_a_dead_letter_and_the_other_99_are_sent_once_in_order(
    receiver: HttpReceiver, tmp_path: Path, way: dict[str, Any]
) -> None:
    def behave(request: Received) -> Reply:
        poisoned = any(record["id"] == 37 for record in request.records)
        return refused(400, body=b"37 is bad") if poisoned else Reply()

    name = receiver.new_target(behave, keeps_keys=True)
    sink = HttpSink(
        receiver.url(name), dead_letter=FileSink(tmp_path / "dead"), max_in_flight_requests=1,
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


def test_a_dead_letter_sink_that_is_down_stops_the_query(receiver: HttpReceiver, tmp_path: Path) -> None:
    down = HttpSink(receiver.url(receiver.new_target(lambda request: refused(403))))
    name = receiver.new_target(lambda request: refused(400))
    sink = HttpSink(receiver.url(name), dead_letter=down, **QUICK)
    with pytest.raises(TargetError, match="answered 403"):
        LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])


def test_too_large_a_request_is_halved_until_it_fits(trial: Trial) -> None:
    trial.run(lambda request: refused(413) if len(request.records) > 3 else Reply(), rows=100, max_in_flight_requests=1)
    assert trial.ids == list(range(100))


@pytest.mark.parametrize("status", [401, 403, 404, 301, 302, 303, 501, 505, 207])
def test_what_no_retry_can_mend_stops_the_query_at_once(trial: Trial, status: int) -> None:
    with pytest.raises(TargetError, match=f"answered {status}"):
        trial.run(lambda request: refused(status, headers={"Location": "/login"}))
    assert len(trial.target.requests) == 1


def test_a_server_that_says_secrets_back_does_not_bring_them_into_errors(trial: Trial) -> None:
    def behave(request: Received) -> Reply:
        return refused(403, body=f"{request.headers} {request.path}".encode())

    with pytest.raises(TargetError, match=r"answered 403.*Bearer \*\*\*") as caught:
        trial.run(behave, bearer_token="hunter2", headers={"X-Api-Key": "hunter3"}, query={"key": "hunter4"})
    assert "hunter" not in str(caught.value)


SESSION_SECRETS: list[dict[str, Any]] = [
    {"username": "me", "password": "hunter5"},
    {"auth": ("X", "hunter6")},
    {"header": ("X-Api-Key", "hunter7")},
    {"cookie": "hunter8"},
    {},
]


@pytest.mark.parametrize("status", [403, 400, 503])
@pytest.mark.parametrize("secret", SESSION_SECRETS)
def test_no_secret_comes_back_whoever_gave_it_and_however_it_is_written(
    trial: Trial, secret: dict[str, Any], status: int
) -> None:
    def behave(request: Received) -> Reply:
        basic = request.headers.get("authorization", "").removeprefix("Basic ")
        said = {
            "path": request.path, "query": unquote_plus(request.path), "plain": base64.b64decode(basic).decode(),
            "headers": {name: request.headers.get(name) for name in ("authorization", "x-api-key", "cookie")},
        }  # fmt: skip
        return refused(status, body=json.dumps(said).encode())

    options = {name: value for name, value in secret.items() if name in ("username", "password")}
    if secret and not options:
        options["session"] = session = requests.Session()
        session.auth = secret.get("auth")
        session.headers.update([secret["header"]] if "header" in secret else [])
        session.cookies.update({"id": secret["cookie"]} if "cookie" in secret else {})
    with pytest.raises(OutfallError) as caught:
        trial.run(
            behave, rows=1, path="?token=hunter1%2F%C3%A4&n=1", query={"key": "hunter2/ö"}, max_retries=0, **options
        )
    assert "says" in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert "?token=***" in str(caught.value)
    assert trial.target.requests


ECHOES: dict[str, Callable[[str], str]] = {
    "PHP's JSON": lambda text: json.dumps(text).replace("/", "\\/"),
    "HTML": lambda text: html.escape(text).replace("/", "&#x2F;"),
    "percent in lower case": lambda text: quote(text, safe="").lower(),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "percent in PHP's JSON": lambda text: json.dumps(quote(text)).replace("/", "\\/"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("way", [{"bearer_token": "hunter/2+=&ä"}, {"username": "me", "password": "h/?>~unter2"}])
def test_a_server_that_echoes_credentials_brings_them_into_no_error_dead_letter_log_or_traceback(
    trial: Trial, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: dict[str, Any], echo: str
) -> None:
    """Scenario H10: what is sent, and the password in it, in the encodings that servers answer in."""

    def echoing(status: int) -> Behaviour:
        def behave(request: Received) -> Reply:
            sent = request.headers["authorization"]
            plain = base64.b64decode(sent.partition(" ")[2]).decode() if "username" in way else ""
            return refused(status, body=ECHOES[echo](f"your {sent} is {plain}").encode())

        return behave

    def per_item(answer: Response, count: int) -> list[int]:
        raise ValueError(f"cannot read {answer.body.decode()}")

    letters = FileSink(tmp_path / "dead")
    said: list[str] = []
    more: dict[int, dict[str, Any]] = {
        403: {}, 400: {"dead_letter": letters}, 503: {"max_retries": 1}, 207: {"per_item": per_item},
    }  # fmt: skip
    for status in more:
        try:
            trial.run(echoing(status), rows=1, **(way | more[status]))
        except OutfallError as error:
            said.append("".join(traceback.format_exception(error)))
    said += [path.read_text() for path in (tmp_path / "dead").glob("*.jsonl")] + [caplog.text]
    assert all("***" in text for text in said)
    assert len(said) == 5
    secret = way.get("bearer_token") or way["password"]
    hidden = [secret, f"me:{secret}", base64.b64encode(f"me:{secret}".encode()).decode()]
    for text in said:
        read = unquote(html.unescape(quopri.decodestring(text.encode()).decode("utf-8", "replace")).replace("\\", ""))
        assert not any(form in seen for form in [*hidden, "unter2", "hunter"] for seen in (text, read))


def test_an_error_that_lasts_ends_in_an_error_that_says_so(trial: Trial) -> None:
    with pytest.raises(TransientError, match="answered 503") as caught:
        trial.run(lambda request: refused(503, body=b"maintenance until noon"), max_retries=2)
    assert "2 tries" in str(caught.value) or "3 tries" in str(caught.value)
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_keeps_the_body_and_leaves_credentials_behind(
    trial: Trial, tmp_path: Path, status: int, way: dict[str, Any]
) -> None:
    with HttpReceiver().running() as other:
        there = other.new_target()
        location = {"Location": other.url(there)}
        trial.run(
            lambda request: refused(status, headers=location), max_batch_size=5, max_in_flight_requests=1,
            bearer_token="hunter2", headers={"X-Api-Key": "hunter2"}, **options_of(way),
        )  # fmt: skip
        received = other.targets[there].requests
        assert [record["id"] for record in other.targets[there].accepted] == list(range(10))
        assert [request.key for request in received] == trial.keys
        assert "hunter2" not in repr(received)
    assert all("hunter2" in repr(request) for request in trial.target.requests)


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


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("body", ["array", "wrapped", "ndjson"])
def test_bodies_arrive_as_they_were_written(trial: Trial, body: Any, compression: Any) -> None:
    trial.run(lambda request: Reply(), rows=30, body=body, compression=compression, max_batch_size=7)
    assert sorted(trial.ids) == list(range(30))
    assert {record["text"] for record in trial.target.accepted} == {f"ä{number}" for number in range(30)}


@pytest.mark.parametrize("size", [2_500_000, pytest.param(25_000_000, marks=pytest.mark.long)])
def test_fifty_megabytes_and_a_server_that_refuses_them(receiver: HttpReceiver, tmp_path: Path, size: int) -> None:
    name = receiver.new_target(first(refused(413)))
    limits = {"max_batch_size_in_bytes": "64 MiB", "max_record_size_in_bytes": "64 MiB", "request_timeout_ms": 120_000}
    sink = HttpSink(receiver.url(name), **(QUICK | limits))
    rows = [{"id": number, "text": "x" * size} for number in range(2)]
    LocalDriver(sink, str(tmp_path)).run_epoch(0, [rows])
    assert sorted(record["id"] for record in receiver.targets[name].accepted) == [0, 1]
    assert max(len(request.body) for request in receiver.targets[name].requests) > 2 * size


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


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A bare socket, for what no HTTP server would do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def run() -> None:
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            done.set()
            with socket.create_connection(server.getsockname()):
                pass
            thread.join()


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("http://no-such-host.invalid/x", TargetError, "cannot be resolved"),
        ("http://127.0.0.1:1/x", TransientError, "cannot be reached"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_where_nobody_is(
    url: str,
    error: type[OutfallError],
    message: str,
    way: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "no-such-host.invalid":  # a name server may be away, and say so
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    sink = HttpSink(url, **(QUICK | {"max_retries": 1} | options_of(way)))
    with pytest.raises(error, match=message):
        LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])


@pytest.mark.parametrize("way", WAYS)
def test_a_server_without_tls_is_a_mistake_and_not_an_outage(way: dict[str, Any], tmp_path: Path) -> None:
    with listener(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        sink = HttpSink(f"https://127.0.0.1:{port}/x", **(QUICK | options_of(way)))
        with pytest.raises(TargetError, match="does not speak TLS"):
            LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])


def _request(connection: socket.socket) -> bytes:
    """Read one request: its body. Empty when there is none."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return body


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seconds", [None, 0.05])
def test_a_second_response_that_nobody_asked_for_accepts_no_other_request(
    way: dict[str, Any], seconds: float | None, tmp_path: Path
) -> None:
    """It comes right behind the first one, or while the connection is idle."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    accepted: list[bytes] = []
    said = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            while body := _request(connection):
                if accepted:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
                    continue
                accepted.append(body)
                connection.sendall(ok if seconds else ok + ok)
                if seconds:
                    time.sleep(seconds)
                    connection.sendall(ok)
                said.set()

    with listener(serve) as port:
        options = options_of(way)
        driver = LocalDriver(HttpSink(f"http://127.0.0.1:{port}/x", **(QUICK | options)), str(tmp_path))
        driver.run_epoch(0, [[{"id": 0}]])
        assert said.wait(60)
        time.sleep(0.05)
        with pytest.raises(ValueRefusedError, match=r"is refused \(400\)"):
            driver.run_epoch(1, [[{"id": 1}]])
        if "session" in options:
            options["session"].close()
        close_idle_connections()
    assert len(accepted) == 1


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_head_that_comes_byte_by_byte_has_the_bound_of_the_exchange(way: dict[str, Any], tmp_path: Path) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            while _request(connection):
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2000:
                    connection.sendall(bytes([byte]))
                    if over.wait(0.02):
                        return

    with listener(serve) as port:
        sink = HttpSink(f"http://127.0.0.1:{port}/x", **(QUICK | {"max_retries": 1, "request_timeout_ms": 400} | way))
        started = time.monotonic()
        with pytest.raises(TransientError, match="the server was silent, or too slow"):
            LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])
        assert time.monotonic() - started < 20
        over.set()
