"""The way of `requests`: what its errors mean."""

from __future__ import annotations

import errno
import time
from typing import Any

import pytest
import requests
from requests import exceptions
from requests.adapters import BaseAdapter

from outfall.http.connecting import translated
from outfall.http.options import HttpOptions
from outfall.http.session import SessionTransport
from outfall.http.transport import Call, ExchangeError, Fault

URL = "http://api.example/events"


class Failing(BaseAdapter):
    """A user's own, which raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def send(self, *args: Any, **options: Any) -> requests.Response:
        raise self.error

    def close(self) -> None:
        pass


def fault(session: requests.Session) -> Fault:
    transport = SessionTransport(HttpOptions(url=URL), session=session)
    with pytest.raises(ExchangeError) as caught:
        transport.exchange(Call("POST", URL, b"[]", (), (), True, time.monotonic() + 30, False))
    assert "hunter2" not in str(caught.value)
    return caught.value.fault


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.RetryError("too many 503 error responses for url /?token=hunter2"), Fault.LOST),
        (exceptions.UnrewindableBodyError("hunter2"), Fault.LOST),
        (exceptions.RequestException("hunter2"), Fault.LOST),
        (exceptions.ChunkedEncodingError("hunter2"), Fault.LOST),
        (exceptions.ReadTimeout("hunter2"), Fault.LATE),
        (exceptions.InvalidURL("hunter2"), Fault.CONFIGURATION),
        (exceptions.InvalidProxyURL("hunter2"), Fault.CONFIGURATION),
        (exceptions.InvalidSchema("hunter2"), Fault.CONFIGURATION),
        (exceptions.MissingSchema("hunter2"), Fault.CONFIGURATION),
    ],
)
def test_only_what_every_request_would_meet_stops_the_query(error: Exception, expected: Fault) -> None:
    session = requests.Session()
    session.mount("http://", Failing(error))
    assert fault(session) is expected


def test_a_header_of_the_session_that_is_none_stops_the_query() -> None:
    session = requests.Session()
    session.headers["X-Api-Key"] = "hunter2\nX-Evil: 1"
    assert fault(session) is Fault.CONFIGURATION


def test_of_several_causes_the_one_that_was_named_comes_first() -> None:
    error = exceptions.ConnectionError("no way")
    error.__cause__, error.__context__ = OSError(errno.ECONNREFUSED, "refused"), OSError(errno.ENETDOWN, "down")
    assert translated(error, "the host") == (Fault.NOT_SENT, "the host cannot be reached (ECONNREFUSED)")
