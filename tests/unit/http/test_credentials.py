"""Secrets and tokens: how a request carries them, when they are renewed, and that no text shows them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from outfall.errors import ConfigurationError, TransientError
from outfall.http.auth import Anonymous, Credentials, OAuth2, credentials
from outfall.http.sender import Sender
from outfall.http.statuses import Statuses
from outfall.http.transport import ExchangeError, Fault, Headers
from outfall.tokens import TokenCache, _Fetch
from tests.unit.support.http_script import LATER, URL, Server, options, sender


@pytest.mark.parametrize("value", ["a\nb", "a\r\nX: y", "a\0", " a", "a ", "€"])
def test_a_header_that_would_become_two_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(ConfigurationError, match="X-Api-Key contains a character") as caught:
        sender(Server(), options(headers={"X-Api-Key": value}))
    assert repr(value) not in str(caught.value)


@pytest.mark.parametrize("value", ["a\nb", "abc\r\nX-Evil: 1", "a\0", "a ", "€", ""])
def test_a_token_that_would_become_two_headers_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(ConfigurationError, match="bearer_token contains a character") as caught:
        credentials(options(bearer_token=SecretStr(value)))
    assert len(value) < 3 or value not in str(caught.value)


def test_a_token_that_is_renewed_by_one_that_makes_no_header_stops_the_query(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server = Server(401)
    made = sender(server, options(bearer_token=f"file:{file}"))
    file.write_text("new\r\nX-Evil: 1\n")
    with pytest.raises(ConfigurationError, match="bearer_token contains a character"):
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
    monkeypatch.setattr("outfall.tokens._Fetch", Fetching)
    cache, fetches, found = TokenCache(), [], []

    def fetch() -> tuple[str, float | None]:
        for _ in range(9):
            assert Fetching.waiting.acquire(timeout=60)
        fetches.append(1)
        if fails:
            raise TransientError("x gave no token", why="It responded with 503")
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
    assert found == ["x gave no token. It responded with 503." if fails else "t"] * 10
    assert fetches == [1]
    assert cache.get("key", lambda: ("next", None)) == ("next" if fails else "t")


def test_nobody_waits_for_anothers_fetch_beyond_the_deadline_and_the_next_one_asks_anew() -> None:
    now = [0.0]
    cache = TokenCache(lambda: now[0])

    def hanging() -> tuple[str, float | None]:
        with pytest.raises(TransientError, match="Another thread has requested it, and there was no response in time"):
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
        options(request_timeout=5), server, who, Statuses(keyed=True, template=False),
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
