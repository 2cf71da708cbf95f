"""`HttpSink`: rows in the bodies of HTTP requests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
import requests
from requests.auth import AuthBase, HTTPBasicAuth

from outfall.async_sink import AimdLimiter, AsyncSink, FixedLimiter, GradientLimiter, Limiter
from outfall.capabilities import (
    Guarantee,
    RowIdentity,
    SupportsPreWriteTopology,
    SupportsTarget,
)
from outfall.errors import ConfigurationError
from outfall.formats import FormatOptions, check_schema
from outfall.http.connecting import reach
from outfall.http.items import PerItem, by_position, by_status
from outfall.http.options import HttpArguments, HttpOptions
from outfall.http.partition import HttpPartition
from outfall.http.records import HttpRecord, HttpRecordSerializer, by_content
from outfall.http.templates import UrlTemplate, check_column, origin
from outfall.options import make_options, names_arguments
from outfall.secret_values import names_a_secret
from outfall.unencrypted_secrets import Sent
from outfall.urls import masked
from outfall.wrappers import WithDeadLetters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYS_KEPT = (
    "a receiver that stores the keys of {header} for longer than a failed epoch may wait for its rerun, and"
    " that responds to a known key without processing the request again"
)
_OF_ROWS = ("row", "content", "item")
"""The values of `idempotency` that identify a row."""
_SAME_ROWS = "a source that replays the same rows when an epoch runs again"


class HttpSink(WithDeadLetters):
    """Sends rows as JSON in the bodies of HTTP requests, many concurrently.

    Item type: rows (dicts or Arrow batches). Each becomes a JSON object, in the format of Spark's JSON writer.

    What must exist: a server at the URL whose statuses follow the table in the documentation.

    Unit of parallelism: each Spark task sends its rows, with adaptive concurrency.

    Guarantee: at least once. Effectively once with `idempotency="row"`, `"content"` or `"item"`, if the receiver meets
    the requirements of `requires()`. A permanently rejected row fails the query or becomes a dead letter.

    Args:
        url: where requests are sent. See `HttpOptions` for it and for all other options.
        auth: any auth object of `requests`, instead of the authentication options. Python API only.
        session: a `requests` session, whose adapters, proxies, headers and auth are used. It is shared by the threads
            of a task. Python API only. Like `auth` it costs speed: each request goes through `requests`.
        per_item: reads which records a response accepts or refuses. It gets the response and the number of records,
            and returns an HTTP status or an `ItemResponse` per record; see `PerItem`. Python API only.
        dead_letter: a sink for rejected records; see `outfall.wrappers.DeadLetteringSink`. Python API only.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected records.
    """

    @names_arguments
    def __init__(
        self,
        url: str,
        *,
        auth: AuthBase | None = None,
        session: requests.Session | None = None,
        per_item: PerItem | None = None,
        dead_letter: Any = None,
        **options: Unpack[HttpArguments],
    ) -> None:
        made = make_options(HttpOptions, {"url": url} | options)
        kind = ContentRequestSink if made.idempotency == "content" else HttpRequestSink
        sink = kind(made, auth=auth, session=session, per_item=per_item)
        super().__init__(sink, dead_letter)


class HttpRequestSink(AsyncSink[HttpRecord], SupportsTarget[Any]):
    """Creates the partitions of an `HttpSink`."""

    shown_as = "HttpSink"

    def __init__(
        self,
        options: HttpOptions,
        *,
        auth: AuthBase | None = None,
        session: requests.Session | None = None,
        per_item: PerItem | None = None,
    ) -> None:
        # An attempt times out by itself; the base only gives up requests that hang where nothing can end them, as in a
        # resolver.
        super().__init__(options.model_copy(update={"request_timeout": options.request_timeout + _GRACE}))
        self.http = options
        self.auth = auth
        self.session = session
        self.per_item = per_item
        """As given; see `reads_items`."""
        self._check_objects()

    def __repr__(self) -> str:
        return f"HttpSink({masked(self.http.url)!r}, method={self.http.method!r}, body={self.http.body!r})"

    def key_columns(self) -> Sequence[str]:
        return () if self.http.key_column is None else (self.http.key_column,)

    def kind(self) -> str:
        return "http"

    def target(self) -> str:
        return f"{self.http.method} {masked(self.http.url)}"

    def row_identity(self) -> RowIdentity | None:
        how = self.http.idempotency
        return RowIdentity(f"idempotency {how}", tuple(self.key_columns())) if how in _OF_ROWS else None

    def guarantee(self) -> Guarantee:
        return Guarantee.EFFECTIVELY_ONCE if self.http.idempotency in _OF_ROWS else Guarantee.AT_LEAST_ONCE

    def replaces_rows(self) -> bool:
        return self.http.replaces_rows

    def requires(self) -> Sequence[str]:
        options = self.http
        if options.idempotency == "item":
            return (
                f"a receiver that drops an item whose {options.key_column!r} it has accepted before",
                f"rows with a permanent, unique {options.key_column!r}",
            )
        kept = _KEYS_KEPT.format(header=options.idempotency_header)
        if options.idempotency == "row":
            return (kept, f"rows with a permanent, unique {options.key_column!r}")
        return (kept, _SAME_ROWS) if options.idempotency == "content" else ()

    def check_schema(self, schema: pa.Schema) -> None:
        options = self.http
        check_schema(FormatOptions(format="jsonl"), schema)
        for column in UrlTemplate(options.url).columns:
            check_column(schema, column, "the url")
        if options.key_column is not None:
            check_column(schema, options.key_column, "the idempotency key")

    def check_connection(self) -> Sequence[str]:
        if self.session is not None or self.needs_proxy():
            return ["not tested: requests go through a custom session or a proxy"]
        return reach(self.http)

    def host(self) -> Hashable:
        scheme, host, port = origin(self.http.url)
        return f"{scheme}://{host}:{port} {self.http.limiter}"

    def limiter(self) -> Limiter:
        most = self.http.max_in_flight_requests
        if self.http.limiter == "gradient":
            return GradientLimiter(most)
        return AimdLimiter(self.http.max_batch_size * most) if self.http.limiter == "aimd" else FixedLimiter(most)

    def entry_serializer(self) -> HttpRecordSerializer:
        return HttpRecordSerializer()

    def open(self) -> HttpPartition:
        return HttpPartition(self)

    def reads_items(self) -> PerItem | None:
        """Return what reads single records from responses, given as a function or as a path; `None` if nothing does."""
        if self.http.item_status is not None:
            return by_status(self.http.item_status)
        return self.per_item if self.http.failed_item is None else by_position(self.http.failed_item)

    def needs_proxy(self) -> bool:
        """Whether the environment of this process sets a proxy for the URL."""
        return bool(requests.utils.select_proxy(self.http.url, requests.utils.get_environ_proxies(self.http.url)))

    def _check_objects(self) -> None:
        ways = [self.auth, self.session and self.session.auth, self.http.bearer_token, self.http.username]
        ways += [self.http.oauth2_token_url]
        if sum(way is not None for way in ways) > 1:
            raise ConfigurationError(
                "there are two kinds of authentication", do="set only one of auth, session.auth and the options"
            )
        if self.auth is not None and not callable(self.auth):
            raise ConfigurationError(
                "auth is not an auth object of requests", do="derive it from requests.auth.AuthBase"
            )
        secret = self._secret_in_objects()
        if secret is not None and not self.http.may_send(Sent("url", self.http.url, (secret,))):
            raise ConfigurationError(
                f"{secret} would be sent without TLS",
                do="set an https url, or where the network is trusted allow_unencrypted=True",
            )
        if self.per_item is not None and not callable(self.per_item):
            raise ConfigurationError("per_item is not callable", do="pass a function of response and count")
        if self.per_item is not None and (self.http.item_status or self.http.failed_item):
            raise ConfigurationError(
                "per_item, item_status and failed_item exclude each other", do="set the one that reads the responses"
            )

    def _secret_in_objects(self) -> str | None:
        """Return what requests would contain readably; `None` if nothing is seen. Other objects are not checked."""
        session = self.session
        if isinstance(self.auth or (session and session.auth), HTTPBasicAuth | tuple):
            return "the password of basic authentication"
        if session is None:
            return None
        names = filter(names_a_secret, map(str, (*session.headers, *dict(session.params or {}))))
        name = next(names, "a cookie" if session.cookies else None)
        return name and f"{name} of the session"


class ContentRequestSink(HttpRequestSink, SupportsPreWriteTopology):
    """Identifies rows by content. Equal rows must reach the same task, which counts them."""

    def needs_same_rows(self) -> bool:
        return True

    def add_pre_write_topology(self, df: DataFrame) -> DataFrame:
        """Route equal rows to the same task. The routing may differ in a replay."""
        return by_content(df)


_GRACE = timedelta(seconds=2)
