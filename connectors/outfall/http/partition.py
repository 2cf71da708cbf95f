"""One writer: converts rows to records, records to requests, and responses to outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import requests

from outfall.async_sink import BlockingSinkPartition, Request, RequestOutcome, RequestResult
from outfall.errors import OutfallError, TargetError
from outfall.http.auth import credentials
from outfall.http.client import ClientTransport
from outfall.http.records import BodyMaker, ContentKeys, HttpRecord, RecordMaker, fresh_key
from outfall.http.redaction import in_proxies, in_session
from outfall.http.response_mapping import AnswerReader
from outfall.http.sender import Sender
from outfall.http.session import SessionTransport
from outfall.http.statuses import Statuses
from outfall.http.transport import Call, ExchangeError, Response, Transport
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.http.sink import HttpRequestSink


class HttpPartition(BlockingSinkPartition[HttpRecord]):
    """Sends requests, directly or each in a thread.

    A repeated request keeps its key: the base gives it the same id, or the record carries the key. The sink is bound to
    its context. The default transport is the direct one; with a session, an auth object or a proxy, that of `requests`.
    """

    def __init__(self, sink: HttpRequestSink, *, transport: Transport | None = None, **arguments: Any) -> None:
        super().__init__(sink, **arguments)
        options = sink.http
        self._keyed = options.idempotency == "request"
        self._random = fresh_key()
        self._bodies = BodyMaker(options)
        content = ContentKeys(sink.writer_context(), options.method) if options.idempotency == "content" else None
        self._records = RecordMaker(options, content)
        statuses = Statuses(
            keyed=options.keyed,
            template="{" in options.url,
            exceptions=options.statuses,
        )
        self._transport = transport or _transport(sink)
        per_item = sink.reads_items()
        self._quick = options.compression == "none" and per_item is None
        """Whether requests need no thread each, because no step of them blocks."""
        self._sender = Sender(
            options,
            self._transport,
            credentials(options),
            statuses,
            content_type=self._bodies.content_type,
            secrets=_secrets(sink),
        )
        self._reader = AnswerReader(options, statuses, per_item, self._sender.hide)

    def convert(self, batch: pa.RecordBatch) -> Sequence[HttpRecord]:
        return self._records.make(batch)

    def size_in_bytes(self, entry: HttpRecord) -> int:
        return len(entry.body) + 1

    def text_of(self, entry: HttpRecord) -> str:
        return entry.body.decode()

    def submit_request_entries(self, entries: Sequence[HttpRecord], result: RequestResult[HttpRecord]) -> None:
        reached("http: before request")
        if not self._quick:
            super().submit_request_entries(entries, result)
            return
        request = self._request(entries, result.request)
        call = self._sender.ready_call(*request)
        if call is None or not self._transport.start(call, partial(self._arrived, entries, result, call)):
            self._block(entries, result, lambda: self._sender.send(*request))

    def send(self, entries: Sequence[HttpRecord]) -> RequestOutcome[HttpRecord]:
        return self._outcome_of(entries, lambda: self._sender.send(*self._request(entries, None)))

    def send_request(self, entries: Sequence[HttpRecord], request: Request) -> RequestOutcome[HttpRecord]:
        return self._outcome_of(entries, lambda: self._sender.send(*self._request(entries, request)))

    def _request(self, entries: Sequence[HttpRecord], request: Request | None) -> tuple[str, bytes, str | None]:
        key = entries[0].key
        if self._keyed:
            key = fresh_key() if request is None else f"{self._random}-{request.id}"
        return entries[0].url, self._bodies.make([record.body for record in entries]), key

    def _arrived(
        self,
        entries: Sequence[HttpRecord],
        result: RequestResult[HttpRecord],
        call: Call,
        end: Response | ExchangeError,
    ) -> None:
        """Process the result of a request without a thread. It runs on the event loop and must not block."""
        if isinstance(end, ExchangeError):
            result.finish(self._reader.failed(end, entries))
        elif self._sender.ends(end):
            self._finish(entries, result, lambda: end)
        else:
            self._block(entries, result, lambda: self._sender.go_on(call, end))

    def _failed(self, entries: Sequence[HttpRecord], error: Exception) -> RequestOutcome[HttpRecord]:
        """Errors of an auth object or a session, and their causes, may quote what they send."""
        outcome = super()._failed(entries, error)
        if outcome.error is not None and not isinstance(error, OutfallError):
            stopped = TargetError(
                f"{self.sink} could not send a request",
                why=self._sender.hide(f"{type(error).__name__}: {error}"),
                do="correct the auth object, the session or the options",
            )
            return replace(outcome, error=stopped)
        return replace(outcome, reason=outcome.reason and self._sender.hide(outcome.reason))

    def _block(
        self, entries: Sequence[HttpRecord], result: RequestResult[HttpRecord], work: Callable[[], Response]
    ) -> None:
        self._workers.run(lambda: self._finish(entries, result, work))

    def _finish(
        self, entries: Sequence[HttpRecord], result: RequestResult[HttpRecord], work: Callable[[], Response]
    ) -> None:
        try:
            outcome = self._outcome_of(entries, work)
        except Exception as error:
            outcome = self._failed(entries, error)
        result.finish(outcome)

    def _outcome_of(self, entries: Sequence[HttpRecord], work: Callable[[], Response]) -> RequestOutcome[HttpRecord]:
        try:
            answer = work()
        except (ExchangeError, OutfallError) as error:
            return self._reader.failed(error, entries)
        return self._reader.read(answer, entries)

    def close(self) -> None:
        super().close()
        self._sender.close()
        self._transport.close()


def _secrets(sink: HttpRequestSink) -> Sequence[str]:
    """The secrets in requests that are not among the options."""
    proxies = requests.utils.get_environ_proxies(sink.http.url)
    own = sink.session.proxies if sink.session is not None else {}
    return [*in_session(sink.session, sink.auth), *in_proxies(proxies, own)]


def _transport(sink: HttpRequestSink) -> Transport:
    if sink.session is not None or sink.auth is not None or sink.needs_proxy():
        return SessionTransport(sink.http, session=sink.session, auth=sink.auth)
    return ClientTransport(sink.http)
