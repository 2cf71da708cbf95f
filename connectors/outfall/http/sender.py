"""One attempt of one request: adds headers, follows redirects and renews tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode, urljoin, urlsplit

import requests.utils

from outfall.errors import TargetError
from outfall.http.auth import Credentials
from outfall.http.options import HttpOptions
from outfall.http.records import header_value
from outfall.http.redaction import in_header, in_url, masked_location
from outfall.http.statuses import Statuses, Verdict
from outfall.http.templates import origin
from outfall.http.transport import Call, ExchangeError, Fault, Headers, Response, Transport
from outfall.options import known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.tokens import checked_header

_IDEMPOTENT = ("PUT", "DELETE")
"""RFC 9110 §9.2.2, of the methods that the sink supports."""
_PROOFS = 16
"""Number of remembered values of `Authorization`: more than are renewed while a request is in flight."""


class Sender:
    """Sends the requests of one sink. Used by many threads concurrently.

    `statuses` determines the redirects to follow. `secrets` are values that the transport sends and that texts must
    mask, in addition to those of the options. `clock` is the transport's own, in seconds. Raises `ConfigurationError`
    if a secret cannot be read here, or is not a valid header value.
    """

    def __init__(
        self,
        options: HttpOptions,
        transport: Transport,
        credentials: Credentials,
        statuses: Statuses,
        *,
        content_type: str,
        secrets: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._transport = transport
        self._credentials = credentials
        self._statuses = statuses
        self._clock = clock
        self._timeout = options.request_timeout.total_seconds()
        self._query = _query(options)
        self._public: Headers = (("Content-Type", content_type), ("Accept-Encoding", "identity"))
        if options.compression != "none":
            self._public += (("Content-Encoding", options.compression),)
        given = tuple(
            (name, checked_header(f"the value of the header {name}", resolve_secret(value)))
            for name, value in options.headers.items()
        )
        if all(name.lower() != "user-agent" for name, _ in given):
            self._public += (("User-Agent", "outfall"),)
        self._given: Headers = given
        self._closed = False
        in_headers = (part for _, value in given for part in in_header(value))
        in_urls = (part for url in (options.url, options.oauth2_token_url or "") for part in in_url(url))
        self._hidden = Redaction([*in_urls, *in_headers, *secrets])
        self._proofs: dict[str, None] = {}
        """The last values of `Authorization`: a response may echo one that was renewed since."""

    def send(self, url: str, body: bytes, key: str | None) -> Response:
        """Send a request, with an idempotency key if there is one, and return its final response.

        The URL is without the query parameters of the options. Raises `ExchangeError` if there is no response, and
        `OutfallError` if credentials are not available, or a redirect cannot be followed.
        """
        deadline = self._clock() + self._timeout
        call = self._call(url, body, key, self._credentials.headers(deadline), deadline)
        return self.go_on(call, self._exchange(call))

    def ready_call(self, url: str, body: bytes, key: str | None) -> Call | None:
        """Return the first call of `send`; `None` if credentials must be fetched for it, which may block."""
        proof = self._credentials.ready()
        return None if proof is None else self._call(url, body, key, proof, self._clock() + self._timeout)

    def ends(self, answer: Response) -> bool:
        """Whether a response is final, so that `go_on` would return it."""
        return answer.status != 401 and self._statuses.verdict(answer.status) is not Verdict.FOLLOW

    def go_on(self, call: Call, answer: Response) -> Response:
        """Renew credentials and follow redirects while the responses require it. See `send`."""
        renewed, hops = False, 0
        while not self.ends(answer):
            if answer.status == 401:
                proof = call.headers[len(self._public) + len(self._given) :]
                if not call.trusted or renewed or not self._credentials.renew(proof):
                    return answer
                renewed = True
                proof = self._noted(self._credentials.headers(call.deadline))
                call = call._replace(headers=self._public + self._given + proof)
            else:
                if hops == self._options.max_redirects:
                    raise self._lost(call.url, f"it is redirect number {hops + 1}", "set url to the final address")
                hops += 1
                place, stays = self._followed(call.url, answer)
                call = call._replace(url=place)
                if call.trusted and not stays:
                    call = call._replace(headers=self._public, trusted=False)
            answer = self._exchange(call)
        return answer

    def close(self) -> None:
        """Send nothing more, even if a thread waits for a token or a response."""
        self._closed = True

    def _exchange(self, call: Call) -> Response:
        if self._closed:
            raise ExchangeError(Fault.NOT_SENT, "its writer is closed")
        return self._transport.exchange(call)

    def _call(self, url: str, body: bytes, key: str | None, proof: Headers, deadline: float) -> Call:
        options = self._options
        keyed: Headers = ((options.idempotency_header, header_value(key)),) if key is not None else ()
        return Call(
            options.method,
            self._with_query(url),
            body,
            self._public + self._given + self._noted(proof),
            keyed,
            True,
            deadline,
            bool(keyed) or options.method in _IDEMPOTENT,
        )

    def _noted(self, proof: Headers) -> Headers:
        for _, value in proof:
            if value not in self._proofs:
                self._proofs = dict.fromkeys([*self._proofs, value][-_PROOFS:])
        return proof

    def hide(self, text: str) -> str:
        """Mask the values of headers, queries and credentials in a text."""
        proofs = [value.partition(" ")[2] or value for value in list(self._proofs)]
        return self._hidden.hide(text, proofs + known_values(self._options.password, *self._options.query.values()))

    def _with_query(self, url: str) -> str:
        if not self._query:
            return url
        return f"{url}{'&' if '?' in url else '?'}{self._query}"

    def _followed(self, place: str, answer: Response) -> tuple[str, bool]:
        """Return the target of a redirect, and whether credentials may be sent there."""
        location = answer.headers.get("location", "")
        try:
            target = requests.utils.requote_uri(urljoin(place, location.strip())).partition("#")[0]
            split = urlsplit(target)
            here, there = origin(place), origin(target)
        except ValueError:
            raise self._lost(place, "its Location is not a valid URL") from None
        if not location or split.scheme not in ("http", "https") or not split.hostname or "@" in split.netloc:
            masked = masked_location(location, place, self._options.url)
            raise self._lost(place, f"its Location is {masked[:200]!r}")
        if here[0] == "https" and there[0] == "http":
            masked = masked_location(target, place, self._options.url)
            raise self._lost(place, f"it leads from https to {masked[:200]!r}, which is not encrypted")
        upgraded = (here[0], here[2], there[0], there[2]) == ("http", 80, "https", 443)
        return target, here == there or (upgraded and here[1] == there[1])

    def _lost(self, place: str, why: str, do: str = "correct the url, or the server") -> TargetError:
        masked = masked_location(place, place, self._options.url)
        return TargetError(f"{masked} redirects, and the redirect cannot be followed", why=why, do=do)


def _query(options: HttpOptions) -> str:
    pairs = [(name, resolve_secret(value)) for name, value in options.query.items()]
    return urlencode(pairs, quote_via=quote)
