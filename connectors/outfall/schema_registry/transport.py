"""One request to a schema registry: addresses in order, credentials, TLS, proxy, and a bounded response."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from pydantic import SecretStr
from urllib3.exceptions import HTTPError, ProxyError, SSLError

from outfall.async_sink.responses import bounded_heads, read_body
from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.first_contact import UNTRUSTED, causes_of, never_passes
from outfall.options import known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.schema_registry.options import SchemaRegistryOptions
from outfall.serde import parse_json
from outfall.tls import verifying_context
from outfall.tokens import TokenCache, checked_header, no_token, token_in
from outfall.urls import is_overheard, masked

PASSING = (408, 429, 500, 502, 503, 504)
"""Statuses that pass: too many requests, and servers that are busy, starting or away."""
_LARGEST = 16 << 20
"""Bytes of a response. Confluent's registry accepts schemas of up to 1 MB by default."""
_LARGEST_TOKEN = 1 << 16
_CONNECTION = re.compile(r"^\w+\(host=.*?, port=\d+\): ")
"""How urllib3 begins its texts, with the name of a class."""
_SHOWN = 500
_TYPE = "application/vnd.schemaregistry.v1+json"

_tokens = TokenCache()


@dataclass(frozen=True)
class RegistryResponse:
    """The response to a request."""

    status: int
    content: Any
    """Of JSON; otherwise text."""
    reason: str
    """What the registry says about an error, without secrets."""

    @property
    def code(self) -> int | None:
        """Confluent's code of an error, which no other server has."""
        found = self.content.get("error_code") if isinstance(self.content, dict) else None
        return found if isinstance(found, int) else None


class RegistryTransport:
    """Sends requests. Threads share it."""

    def __init__(self, options: SchemaRegistryOptions) -> None:
        """Read the files of TLS. Raises `ConfigurationError` if one cannot be read here."""
        self._options = options
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._first = 0
        self.where = ", ".join(options.url)
        try:
            self._tls = verifying_context(options.ca_bundle)
            if options.client_certificate is not None:
                self._tls.load_cert_chain(options.client_certificate, options.client_key, password=lambda: b"")
        except OSError as error:
            raise ConfigurationError(
                "the TLS certificates of schema_registry cannot be read on this host",
                why=error.strerror or type(error).__name__,
                do="copy the files of ca_bundle, client_certificate and client_key to the hosts of the driver and the"
                " executors; the key must not be encrypted",
            ) from error

    def send(self, method: str, path: str, body: bytes | None) -> RegistryResponse:
        """Send one request to the first URL that responds, beginning with the one that did last.

        Raises `TransientError` if none does, `TargetError` if a certificate is not trusted, and `ConfigurationError` if
        there are no credentials.
        """
        urls, first = self._options.url, self._first
        failures: list[TransientError] = []
        for at in (*range(first, len(urls)), *range(first)):
            try:
                response = self._send_to(urls[at], method, path, body)
            except TransientError as error:
                failures.append(error)
                continue
            self._first = at
            return response
        raise failures[0]

    def _send_to(self, url: str, method: str, path: str, body: bytes | None) -> RegistryResponse:
        headers = self._headers()
        status, data = self._exchange(url, path, method, body, headers)
        if status == 401 and self._renew(headers):
            status, data = self._exchange(url, path, method, body, self._headers())
        content = self._parsed(url, status, data)
        if status in PASSING:
            raise TransientError(
                f"{url} failed", why=self._told(status, content), do="try again; if it persists, check the registry"
            )
        return RegistryResponse(status, content, "" if status < 300 else self._told(status, content))

    def _exchange(
        self, url: str, path: str, method: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Send a request and return status and body. Follows no redirect."""
        seconds = self._options.request_timeout.total_seconds()
        late = time.monotonic() + seconds
        try:
            response = self._pool(url).request(
                method, url + path, body=body, headers=dict(headers), redirect=False, preload_content=False
            )
        except HTTPError as error:
            raise self._unreachable(url, error) from error
        found = read_body(response, most=_LARGEST, deadline=late)
        if found.lacks is not None:
            raise TransientError(
                f"the response of {url} is incomplete", why=found.lacks, do="check the registry and the network"
            )
        return response.status, found.data

    def _unreachable(self, url: str, error: HTTPError) -> Exception:
        why = self._hidden(_CONNECTION.sub("", str(error)))
        if isinstance(error, SSLError) and not any(isinstance(cause, ssl.SSLEOFError) for cause in causes_of(error)):
            wrong = never_passes(error)
            if wrong is not None and wrong is not UNTRUSTED:
                return TargetError(f"{url} cannot be reached", why=f"{wrong.reason}: {why}", do=wrong.do)
            do = "correct url, ca_bundle or client_certificate of schema_registry"
            return TargetError(f"{url} has no trusted certificate", why=why, do=do)
        proxy = isinstance(error, ProxyError)
        do = "check the proxy" if proxy else "check the registry, the url and the network"
        return TransientError(f"{url} does not respond", why=why, do=do)

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Return the connections for a URL, through a proxy if there is one."""
        if url not in self._pools:
            seconds = self._options.request_timeout.total_seconds()
            settings: dict[str, Any] = {
                "maxsize": 4,
                "retries": False,  # the caller repeats
                "timeout": urllib3.Timeout(connect=seconds, read=seconds),
                "ssl_context": self._tls if url.startswith("https:") else None,
            }
            proxy = self._proxy(url)
            if proxy is None:
                self._pools[url] = bounded_heads(urllib3.PoolManager(**settings))
            else:
                split = urlsplit(proxy)
                user = f"{unquote(split.username)}:{unquote(split.password or '')}" if split.username else None
                address = split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()
                given = urllib3.make_headers(proxy_basic_auth=user) if user else None
                self._pools[url] = bounded_heads(urllib3.ProxyManager(address, proxy_headers=given, **settings))
        return self._pools[url]

    def _proxy(self, url: str) -> str | None:
        if self._options.proxy is not None:
            proxy = resolve_secret(self._options.proxy)
            if not self._options.allow_unencrypted and urlsplit(proxy).password and is_overheard(proxy):
                raise ConfigurationError(
                    f"the proxy {masked(proxy)} of schema_registry has a password and no TLS",
                    why="others on the network could read the password",
                    do="set an https URL, or where the network is trusted allow_unencrypted=true",
                )
            return proxy
        split = urlsplit(url)
        if proxy_bypass(split.netloc):
            return None
        proxies = getproxies()
        found = proxies.get(split.scheme) or proxies.get("all")
        # Without a scheme as curl reads it, whose variables these are.
        return f"http://{found}" if found and "://" not in found else found

    def _headers(self) -> dict[str, str]:
        """Return the headers of a request, whose secrets are read again each time: files may be exchanged."""
        options = self._options
        found = {"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE}
        for name, value in options.headers.items():
            found[name] = checked_header(f"the header {name} of schema_registry", resolve_secret(value))
        if options.username is not None and options.password is not None:
            pair = f"{options.username}:{resolve_secret(options.password)}"
            found["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif options.bearer_token is not None:
            found["Authorization"] = checked_header("bearer_token", f"Bearer {resolve_secret(options.bearer_token)}")
        elif options.oauth2_token_url is not None:
            deadline = time.monotonic() + options.request_timeout.total_seconds()
            found["Authorization"] = f"Bearer {_tokens.get(self._token_key(), self._fetch_token, deadline)}"
        return found

    def _renew(self, refused: Mapping[str, str]) -> bool:
        """Return whether a request that was refused for its credentials has other ones now."""
        if self._options.oauth2_token_url is None:
            return self._headers() != refused
        _tokens.forget(self._token_key(), refused["Authorization"].removeprefix("Bearer "))
        return True

    def _token_key(self) -> tuple[Any, ...]:
        options = self._options
        secret = options.oauth2_client_secret
        digest = hashlib.sha256((secret.get_secret_value() if secret else "").encode()).hexdigest()
        return options.oauth2_token_url, options.oauth2_client_id, options.oauth2_scope, digest

    def _fetch_token(self) -> tuple[str, float | None]:
        """Fetch a token with the client credentials, by HTTP Basic (RFC 6749 §2.3.1 and §4.4.2)."""
        options, url = self._options, str(self._options.oauth2_token_url)
        secret = resolve_secret(options.oauth2_client_secret) if options.oauth2_client_secret else ""
        pair = f"{quote_plus(options.oauth2_client_id or '')}:{quote_plus(secret)}"
        form = {"grant_type": "client_credentials"} | ({"scope": options.oauth2_scope} if options.oauth2_scope else {})
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        late = time.monotonic() + options.request_timeout.total_seconds()
        split = urlsplit(url)
        try:
            response = self._pool(f"{split.scheme}://{split.netloc}").request(
                "POST", url, body=urlencode(form), headers=headers, redirect=False, preload_content=False
            )
        except HTTPError as error:
            # Without the cause, whose text contains the URL with its query.
            raise no_token(masked(url), type(error).__name__) from None
        body = read_body(response, most=_LARGEST_TOKEN, deadline=late)
        if body.lacks is not None:
            raise no_token(masked(url), body.lacks)
        return token_in(response.status, body.data, masked(url), self._hidden)

    def _parsed(self, url: str, status: int, data: bytes) -> Any:
        try:
            return parse_json(data)
        except ValueError:
            if status < 300:
                raise TargetError(
                    f"{url} is no schema registry",
                    why=f"its response is not JSON and begins with {self._hidden(_text(data)[:100])!r}",
                    do="correct the url: it needs the path of Confluent's API, such as /apis/ccompat/v7",
                ) from None
            return _text(data)

    def _told(self, status: int, content: Any) -> str:
        told = content.get("message") if isinstance(content, dict) else content
        return self._hidden(f"status {status}, {str(told)[:_SHOWN]}")

    def _hidden(self, text: str) -> str:
        return _redaction(self._options, self._token_key).hide(text)


def _redaction(options: SchemaRegistryOptions, token_key: Callable[[], Any]) -> Redaction:
    """Return what masks the secrets of requests: a registry or a proxy may repeat them."""
    given: list[SecretStr | None] = [
        options.password, options.bearer_token, options.oauth2_client_secret, *options.headers.values()
    ]  # fmt: skip
    found = known_values(*given)
    for proxy in known_values(options.proxy):
        found += [unquote(text) for text in (urlsplit(proxy).password,) if text]
    token = _tokens.peek(token_key())
    return Redaction([*found, *([token] if token else [])])


def _text(data: bytes) -> str:
    return data[: _SHOWN * 4].decode(errors="replace")
