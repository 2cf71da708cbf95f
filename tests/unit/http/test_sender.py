"""What one try of a request carries and where it goes: headers, keys, redirects, credentials; and what answers mean."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from outfall.async_sink import RequestOutcome
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.http.auth import Anonymous, Credentials, OAuth2, TokenCache, _Fetch, credentials
from outfall.http.options import HttpOptions
from outfall.http.records import HttpRecord
from outfall.http.response_mapping import AnswerReader
from outfall.http.sender import Sender
from outfall.http.statuses import Statuses
from outfall.http.transport import Call, ExchangeError, Fault, Headers, Response, Transport

URL = "https://api.example/events"
LATER = float("inf")
RECORDS = [HttpRecord(b'{"id":%d}' % number, URL) for number in range(3)]


def options(**given: Any) -> HttpOptions:
    return HttpOptions(**({"url": URL} | given))


class Server(Transport):
    """Answers by script, and keeps what it was sent."""

    def __init__(self, *answers: Response | int) -> None:
        self.answers = [Response(answer, {}, b"") if isinstance(answer, int) else answer for answer in answers]
        self.calls: list[Call] = []

    def exchange(self, call: Call) -> Response:
        self.calls.append(call)
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def sender(server: Server, given: HttpOptions, who: Credentials | None = None) -> Sender:
    statuses = Statuses(keyed=True, template=False)
    return Sender(
        given, server, who or credentials(given), statuses, content_type="application/json", clock=lambda: 100.0
    )


def redirect(status: int, location: str) -> Response:
    return Response(status, {"location": location}, b"")


def test_a_request_carries_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "k/ä")
    given = options(
        headers={"X-Api-Key": "plain"}, query={"key": "env:API_KEY"}, bearer_token="t", compression="gzip",
        request_timeout_ms=5000, url=f"{URL}?a=1",
    )  # fmt: skip
    server = Server(200)
    sender(server, given).send(given.url, b"body", 'a"b')
    (call,) = server.calls
    assert call.url == f"{URL}?a=1&key=k%2F%C3%A4"
    headers = dict(call.headers)
    assert headers["X-Api-Key"] == "plain"
    assert headers["Authorization"] == "Bearer t"
    assert headers["Content-Encoding"] == "gzip"
    assert headers["User-Agent"] == "outfall"
    assert call.key == (("Idempotency-Key", '"a\\"b"'),)
    assert (call.body, call.deadline, call.repeatable) == (b"body", 105.0, True)


def test_without_a_key_only_idempotent_methods_may_be_repeated_at_once() -> None:
    server = Server(200, 200)
    sender(server, options()).send(URL, b"", None)
    sender(server, options(method="PUT")).send(URL, b"", None)
    assert [(call.key, call.repeatable) for call in server.calls] == [((), False), ((), True)]


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_keeps_method_body_and_key(status: int) -> None:
    server = Server(redirect(status, "/v2?x=1#y"), 200)
    assert sender(server, options(bearer_token="t")).send(URL, b"body", "k").status == 200
    first, second = server.calls
    assert second == first._replace(url="https://api.example/v2?x=1")


@pytest.mark.parametrize(
    "location",
    ["https://other.example/v2", "//other.example/v2", "https://api.example:8443/v2", "https://API.example./"],
)
def test_a_redirect_to_another_origin_carries_neither_auth_nor_headers(location: str) -> None:
    given = options(bearer_token="hunter2", headers={"X-Api-Key": "hunter2"}, query={"token": "hunter2"})
    server = Server(redirect(307, location), redirect(307, "https://api.example/back"), 200)
    sender(server, given).send(URL, b"body", "k")
    for call in server.calls[1:]:
        assert not call.trusted
        assert "hunter2" not in repr(call)
        assert call.body == b"body"
        assert call.key


def test_the_same_host_by_tls_may_have_the_credentials() -> None:
    given = options(url="http://api.example/events", bearer_token="t")
    server = Server(redirect(308, "https://api.example/events"), 200)
    sender(server, given).send(given.url, b"", None)
    assert dict(server.calls[1].headers)["Authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://api.example/v2", "from https to 'http://api.example/***'"),
        ("ftp://api.example/v2", "its Location is"),
        ("https://me:hunter2@api.example/", "its Location is"),
        ("", "its Location is ''"),
        ("https://[", "no URL"),
    ],
)
def test_a_redirect_that_leads_nowhere_stops_the_query(location: str, why: str) -> None:
    with pytest.raises(TargetError) as caught:
        sender(Server(redirect(307, location)), options()).send(URL, b"", None)
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_redirects_in_a_circle_end() -> None:
    server = Server(*[redirect(307, "/round")] * 6)
    with pytest.raises(TargetError, match="redirects, and the redirect cannot be followed"):
        sender(server, options()).send(URL, b"", None)
    assert len(server.calls) == 6


@pytest.mark.parametrize("status", [300, 301, 302, 303])
def test_redirects_after_which_clients_drop_the_body_are_not_followed(status: int) -> None:
    server = Server(redirect(status, "/login"))
    answer = sender(server, options()).send(URL, b"", None)
    outcome = reader().read(answer, RECORDS)
    assert isinstance(outcome.error, TargetError)
    assert "correct the url, if it is 'https://api.example/***' by now" in str(outcome.error)
    assert len(server.calls) == 1


@pytest.mark.parametrize("value", ["a\nb", "a\r\nX: y", "a\0", " a", "a ", "€"])
def test_a_header_that_would_become_two_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(ConfigurationError, match="X-Api-Key holds a character") as caught:
        sender(Server(), options(headers={"X-Api-Key": value}))
    assert repr(value) not in str(caught.value)


@pytest.mark.parametrize("value", ["a\nb", "abc\r\nX-Evil: 1", "a\0", "a ", "€", ""])
def test_a_token_that_would_become_two_headers_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(ConfigurationError, match="bearer_token holds a character") as caught:
        credentials(options(bearer_token=SecretStr(value)))
    assert len(value) < 3 or value not in str(caught.value)


def test_a_token_that_is_renewed_by_one_that_makes_no_header_stops_the_query(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server = Server(401)
    made = sender(server, options(bearer_token=f"file:{file}"))
    file.write_text("new\r\nX-Evil: 1\n")
    with pytest.raises(ConfigurationError, match="bearer_token holds a character"):
        made.send(URL, b"", None)
    assert len(server.calls) == 1


def test_what_is_hidden_leaves_other_words_alone() -> None:
    given = options(url=f"{URL}?v=1&a={{id}}&key=geheim", body="record", password="pä/ss", username="me")
    hide = sender(Server(), given).hide
    assert hide("line 1 of /events?v=1&a=7&key=geheim") == "line 1 of /events?***&a=7&key=***"
    assert hide('pä/ss p%C3%A4%2Fss "p\\u00e4/ss"') == '*** *** "***"'


def test_what_a_header_holds_behind_its_scheme_is_hidden() -> None:
    basic = base64.b64encode(b"me:hunter3").decode()
    given = options(headers={"X-Auth": "ApiKey hunter2", "X-Basic": f"Basic {basic}"})
    assert sender(Server(), given).hide("no hunter2, nor hunter3") == "no ***, nor ***"


def test_a_token_that_was_renewed_is_still_hidden(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hunter-old")
    made = sender(Server(401, 200), options(bearer_token=f"file:{file}"))
    file.write_text("hunter-new")
    made.send(URL, b"body", "k")
    assert made.hide("hunter-old is over, hunter-new is not") == "*** is over, *** is not"


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/reset/hunter2", "https://api.example/***"),
        ("https://other.example:444/t/hunter2?x=hunter2#hunter2", "https://other.example:444/***"),
        ("https://me:hunter2@api.example/events/", "https://api.example/events/"),
        ("http://api.example/events", "http://api.example/events"),
        ("//other.example", "https://other.example"),
        ("https://[hunter2", "***"),
        ("mailto:hunter2", "***"),
    ],
)
def test_of_a_location_only_what_is_no_secret_is_shown(location: str, shown: str) -> None:
    error = reader().read(redirect(301, location), RECORDS).error
    assert f"if it is {shown!r} by now" in str(error)
    assert "hunter2" not in str(error)


def test_a_redirect_from_a_secret_path_does_not_show_it() -> None:
    server = Server(redirect(307, "/t/hunter2"), redirect(307, "ftp://x/"))
    with pytest.raises(TargetError, match=r"https://api.example/\*\*\* redirects") as caught:
        sender(server, options()).send(URL, b"", None)
    assert "hunter2" not in str(caught.value)


def test_basic_authentication() -> None:
    server = Server(200)
    sender(server, options(username="mé", password="pä:ss")).send(URL, b"", None)
    wanted = base64.b64encode("mé:pä:ss".encode()).decode()
    assert dict(server.calls[0].headers)["Authorization"] == f"Basic {wanted}"


def test_a_token_in_a_file_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server = Server(401, 200, 401)
    made = sender(server, options(bearer_token=f"file:{file}"))
    file.write_text("new\n")
    assert made.send(URL, b"body", "k").status == 200
    assert made.send(URL, b"body", "k").status == 401
    assert [dict(call.headers)["Authorization"] for call in server.calls] == ["Bearer old", "Bearer new", "Bearer new"]
    assert len({call.key for call in server.calls}) == 1


class Tokens:
    """An authorisation server: each token says which one it is."""

    def __init__(self, seconds: float | None = 100.0) -> None:
        self.given = 0
        self.seconds = seconds

    def __call__(self) -> tuple[str, float | None]:
        self.given += 1
        return f"t{self.given}", self.seconds


def oauth2(fetch: Callable[[], tuple[str, float | None]], now: list[float]) -> tuple[OAuth2, TokenCache]:
    cache = TokenCache(lambda: now[0])
    given = options(oauth2_token_url="https://x/t", oauth2_client_id="c", oauth2_client_secret="s")
    return OAuth2(given, fetch, cache), cache


def token(who: Credentials) -> str:
    return dict(who.headers(LATER))["Authorization"]


def test_a_token_is_fetched_once_and_again_before_it_expires() -> None:
    now, tokens = [0.0], Tokens()
    who, _ = oauth2(tokens, now)
    assert who.ready() is None
    found = []
    for now[0] in (0.0, 89.0, 91.0, 150.0):
        found.append(token(who))
    assert found == ["Bearer t1", "Bearer t1", "Bearer t2", "Bearer t2"]
    assert who.ready() == who.headers(LATER)


def test_a_token_without_an_end_lasts_until_it_is_refused_once() -> None:
    now, tokens = [0.0], Tokens(None)
    who, _ = oauth2(tokens, now)
    server = Server(401, 200, 401, 401)
    made = sender(server, options(), who)
    assert made.send(URL, b"", None).status == 200
    now[0] = 1e9
    assert made.send(URL, b"", None).status == 401
    assert [dict(call.headers)["Authorization"] for call in server.calls] == [
        "Bearer t1", "Bearer t2", "Bearer t2", "Bearer t3",
    ]  # fmt: skip


def test_a_token_that_somebody_renewed_meanwhile_is_kept() -> None:
    who, _ = oauth2(Tokens(), [0.0])
    old = who.headers(LATER)
    who.renew(old)
    new = who.headers(LATER)
    who.renew(old)
    assert who.headers(LATER) == new


class Fetching(_Fetch):
    """Says who waits for it."""

    waiting = threading.Semaphore(0)

    def __init__(self) -> None:
        super().__init__()
        over, waiting = self.over, self.waiting

        class Watched(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waiting.release()
                return over.wait(timeout)

            def set(self) -> None:
                over.set()

        self.over = Watched()


@pytest.mark.parametrize("fails", [True, False])
def test_all_who_wait_for_a_token_share_what_comes_of_one_fetch(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr("outfall.http.auth._Fetch", Fetching)
    cache, fetches, found = TokenCache(), [], []

    def fetch() -> tuple[str, float | None]:
        for _ in range(9):
            assert Fetching.waiting.acquire(timeout=60)
        fetches.append(1)
        if fails:
            raise TransientError("x gave no token", why="it answered 503")
        return "t", None

    def ask() -> None:
        try:
            found.append(cache.get("key", fetch))
        except TransientError as error:
            found.append(str(error))
            error.locate(step="s", epoch=len(found))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["x gave no token. it answered 503." if fails else "t"] * 10
    assert fetches == [1]
    assert cache.get("key", lambda: ("next", None)) == ("next" if fails else "t")


def test_nobody_waits_for_anothers_fetch_beyond_the_deadline_and_the_next_one_asks_anew() -> None:
    now = [0.0]
    cache = TokenCache(lambda: now[0])

    def hanging() -> tuple[str, float | None]:
        with pytest.raises(TransientError, match="another request has asked for it, and there was no answer in time"):
            cache.get("key", Tokens(), deadline=0.0)
        assert cache.get("key", Tokens()) == "t1"
        return "late", None

    assert cache.get("key", hanging) == "late"
    assert cache.get("key", Tokens()) == "late"


class Slow(Anonymous):
    """Credentials that take their time."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.meanwhile = meanwhile
        self.deadlines: list[float] = []

    def headers(self, deadline: float) -> Headers:
        self.deadlines.append(deadline)
        self.meanwhile()
        return ()


def test_the_time_that_a_token_takes_is_the_requests_own() -> None:
    now = [100.0]

    def wait() -> None:
        now[0] += 4.0

    server, who = Server(200), Slow(wait)
    made = Sender(
        options(request_timeout_ms=5000), server, who, Statuses(keyed=True, template=False),
        content_type="application/json", clock=lambda: now[0],
    )  # fmt: skip
    made.send(URL, b"", None)
    assert [call.deadline for call in server.calls] == who.deadlines == [105.0]


def test_a_token_that_comes_when_the_writer_is_closed_sends_nothing() -> None:
    server = Server(200)
    who = Slow(lambda: None)
    made = sender(server, options(), who)
    who.meanwhile = made.close
    with pytest.raises(ExchangeError, match="its writer is closed") as caught:
        made.send(URL, b"", None)
    assert (server.calls, caught.value.fault) == ([], Fault.NOT_SENT)


def reader(**given: Any) -> AnswerReader:
    per_item = given.pop("per_item", None)
    return AnswerReader(options(**given), Statuses(keyed=True, template=False), per_item)


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


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_poisoned_request_is_split(status: int) -> None:
    outcome = read(status, b"bad")
    assert (outcome.split, outcome.retry, outcome.code) == (RECORDS, (), str(status))


@pytest.mark.parametrize(
    ("status", "do"), [(401, "credentials"), (403, "right"), (404, "url"), (501, "statuses="), (207, "per_item=")]
)
def test_what_every_request_would_meet_stops_the_query(status: int, do: str) -> None:
    outcome = read(status, b"no such luck")
    assert isinstance(outcome.error, TargetError)
    assert f"answered {status}" in str(outcome.error)
    assert do in str(outcome.error)


def test_items_are_taken_one_by_one() -> None:
    def statuses(answer: Response, count: int) -> list[int]:
        return [int(text) for text in answer.body.split()]

    outcome = read(207, b"201 429 400", {"retry-after": "3"}, per_item=statuses)
    assert outcome.retry == [RECORDS[1]]
    assert [(refusal.entry, refusal.code) for refusal in outcome.dead] == [(RECORDS[2], "400")]
    assert (outcome.after, outcome.together) == (3.0, False)
    assert read(200, b"200 200 200", per_item=statuses) == RequestOutcome(
        retry=[], dead=[], reason=f"{URL} did not accept the record"
    )
    assert isinstance(read(200, b"200 401 200", per_item=statuses).error, TargetError)
    assert isinstance(read(200, b"200", per_item=statuses).error, ConfigurationError)
    assert read(503, b"", per_item=statuses).retry == RECORDS


def test_answers_that_have_no_body_by_their_status_are_not_asked_for_items() -> None:
    def never(answer: Response, count: int) -> list[int]:
        raise AssertionError

    assert read(204, per_item=never) == read(205, per_item=never) == RequestOutcome()


def test_a_per_item_that_raises_is_named_with_what_it_could_not_read() -> None:
    error = read(200, b"<html>hunter2", per_item=lambda answer, count: json.loads(answer.body)).error
    assert isinstance(error, TargetError)
    assert "per_item cannot read what https://api.example/events answered with 200" in str(error)
    assert "it says '<html>" in str(error)
    assert "JSONDecodeError in test_sender.py, line" in str(error)
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


def test_a_secret_that_is_not_there_is_named_by_its_place() -> None:
    with pytest.raises(ConfigurationError, match="NO_SUCH_VARIABLE"):
        sender(Server(), options(headers={"X": "env:NO_SUCH_VARIABLE"}))
    with pytest.raises(ConfigurationError, match="NO_SUCH_VARIABLE"):
        credentials(options(bearer_token=SecretStr("env:NO_SUCH_VARIABLE")))


def test_without_credentials_nothing_is_said_and_nothing_renewed() -> None:
    nobody: Headers = Anonymous().headers(LATER)
    assert nobody == ()
    server = Server(401)
    assert sender(server, options()).send(URL, b"", None).status == 401
    assert len(server.calls) == 1
