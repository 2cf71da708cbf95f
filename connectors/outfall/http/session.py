"""The transport of `requests`: its sessions with adapters and proxies, and its auth objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from outfall.async_sink.responses import read_body
from outfall.first_contact import causes_of
from outfall.http.connecting import client_certificate, translated, trusted
from outfall.http.options import HttpOptions
from outfall.http.templates import origin
from outfall.http.transport import Call, ExchangeError, Fault, Response, Transport


class SessionTransport(Transport):
    """Sends through `requests`, which is slower than the direct transport and supports all of its features.

    The threads of a task share the session. Trusted calls use the session's own headers and auth. Other calls use a
    session without them, so that neither follows a redirect to another origin.

    The response head has no total timeout, because `requests` has none. If a server sends it byte by byte, thread and
    connection stay occupied until it ends, even after the request has timed out. `close` cannot end it.

    The user gives `auth` and `session`, whose adapters, proxies, headers and auth are used.
    """

    def __init__(
        self,
        options: HttpOptions,
        *,
        session: requests.Session | None = None,
        auth: AuthBase | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._own = session is None
        self._session = session or self._new_session()
        self._stranger = self._new_session()
        self._auth = auth
        self._clock = clock
        self._connect = options.connect_timeout.total_seconds()
        self._read = options.read_timeout.total_seconds()
        self._longest = int(options.max_response_bytes)

    def exchange(self, call: Call) -> Response:
        left = call.deadline - self._clock()
        if left <= 0:
            raise ExchangeError(Fault.LATE, "the request has used up its time")
        try:
            response = self._send(call, left)
        except requests.exceptions.ReadTimeout as error:
            raise ExchangeError(Fault.LATE, "the server was silent") from error
        except requests.exceptions.ConnectTimeout as error:
            raise ExchangeError(Fault.NOT_SENT, "the server does not accept a connection in time") from error
        except requests.exceptions.ConnectionError as error:
            raise ExchangeError(*self._translated(error, call)) from error
        except requests.exceptions.ChunkedEncodingError as error:
            raise ExchangeError(Fault.LOST, "the connection broke") from error
        except requests.exceptions.RequestException as error:
            # Others may be transient: `RetryError` means that a custom adapter has exhausted its own retries.
            fault = Fault.CONFIGURATION if isinstance(error, _NEVER) else Fault.LOST
            raise ExchangeError(fault, f"{type(error).__name__} in requests") from error
        with response:
            body, whole = self._body(response, call)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Response(response.status_code, headers, body, whole)

    def close(self) -> None:
        self._stranger.close()
        if self._own:
            self._session.close()

    def _send(self, call: Call, left: float) -> requests.Response:
        session = self._session if call.trusted else self._stranger
        return session.request(
            call.method,
            call.url,
            data=call.body,
            headers=dict(call.headers + call.key),
            auth=self._auth if call.trusted else None,
            timeout=(min(self._connect, left), min(self._read, left)),
            allow_redirects=False,
            stream=True,
            **self._settings(call),
        )

    def _settings(self, call: Call) -> dict[str, Any]:
        """The TLS and proxy settings of a custom session are used unless the options override them."""
        options = self._options
        if not self._own and call.trusted:
            return {} if options.verify and not options.ca_bundle else {"verify": options.ca_bundle or options.verify}
        certificate = client_certificate(options) if call.trusted else None
        proxies = requests.utils.get_environ_proxies(call.url)
        return {"verify": trusted(options) if options.verify else False, "cert": certificate, "proxies": proxies}

    def _body(self, response: requests.Response, call: Call) -> tuple[bytes, bool]:
        """Read the response body up to its limit, within the request's timeout."""
        body = read_body(response.raw, most=self._longest, deadline=call.deadline, clock=self._clock)
        return body.data, body.lacks is None  # the status has arrived, and it determines the outcome

    def _translated(self, error: requests.exceptions.ConnectionError, call: Call) -> tuple[Fault, str]:
        _, host, port = origin(call.url)
        fault, why = translated(error, f"{host}:{port}")
        if fault is Fault.NOT_SENT and not _before_sending(error):
            return Fault.LOST, f"the connection broke ({type(error).__name__})"
        return fault, why

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        # It would read passwords from ~/.netrc.
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        adapter = HTTPAdapter(pool_connections=16, pool_maxsize=self._options.max_in_flight_requests, max_retries=0)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        return session


_NEVER = (
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidURL,  # also for a proxy
    requests.exceptions.MissingSchema,
)
"""Permanent errors: every request would fail."""


def _before_sending(error: Exception) -> bool:
    """Whether the connection failed, so that the server has received nothing."""
    connecting = (
        urllib3.exceptions.NewConnectionError,
        urllib3.exceptions.ConnectTimeoutError,
        urllib3.exceptions.ProxyError,
        urllib3.exceptions.SSLError,
    )
    return any(isinstance(cause, connecting) for cause in causes_of(error))
