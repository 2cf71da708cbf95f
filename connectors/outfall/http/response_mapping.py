"""Maps a response to the outcome of its records, and to the pause that the server requests."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from traceback import extract_tb

from outfall.async_sink import RefusedEntry, RequestOutcome
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.http.options import HttpOptions
from outfall.http.records import HttpRecord
from outfall.http.redaction import masked_location
from outfall.http.statuses import Statuses, Verdict
from outfall.http.transport import ExchangeError, Fault, Response
from outfall.location import masked
from outfall.row_logging import RowLog


@dataclass(frozen=True)
class ItemResponse:
    """The part of a response for one record."""

    status: int
    """Its HTTP status."""
    reason: str | None = None
    """Why it was not accepted, in the server's words."""
    code: str | None = None
    """The server's code for the reason, such as `mapper_parsing_exception`. Default: the status."""
    excerpt: str | None = None
    """The beginning of the response for this record."""


PerItem = Callable[[Response, int], Sequence[int | ItemResponse]]
"""Reads the response to a request with the given number of records.

Returns an HTTP status or an `ItemResponse` per record, in order.
"""

_HINTS = {
    401: "correct the credentials",
    403: "grant the permission, or correct the credentials",
    404: "correct the url",
    405: "correct the method or the url",
    415: "correct body, content_type or compression",
}


class AnswerReader:
    """Maps responses and failures to outcomes.

    `per_item` reads responses with one status per record. `hide` masks secrets in a text, because a server may echo
    what it was sent.
    """

    def __init__(
        self,
        options: HttpOptions,
        statuses: Statuses,
        per_item: PerItem | None,
        hide: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._options = options
        self._statuses = statuses
        self._per_item = per_item
        self._hide = hide
        self._longest_pause = options.max_retry_after.total_seconds()
        self._rows = RowLog(options.log_rows, () if options.key_column is None else (options.key_column,))

    def read(self, answer: Response, records: Sequence[HttpRecord]) -> RequestOutcome[HttpRecord]:
        """Return the outcome of a response."""
        verdict = self._statuses.verdict(answer.status)
        asked = verdict in (Verdict.COMPLETE, Verdict.PER_ITEM) and answer.status not in _BODILESS
        if asked and self._per_item is not None:
            return self._items(self._per_item, answer, records)
        if verdict is Verdict.COMPLETE:
            return RequestOutcome()
        reason, code, excerpt = (
            f"{self._place()} responded with {answer.status}",
            str(answer.status),
            self._excerpt(answer),
        )
        if verdict is Verdict.RETRY:
            after = retry_after(answer.headers.get("retry-after"), longest=self._longest_pause)
            return RequestOutcome(
                retry=records, reason=reason, code=code, excerpt=excerpt, after=after, hold_host=after is not None,
                together=True,
            )  # fmt: skip
        if verdict is Verdict.SPLIT:
            return RequestOutcome(split=records, reason=reason, code=code, excerpt=excerpt)
        if verdict is Verdict.DEAD_LETTER:
            return RequestOutcome(dead=[RefusedEntry(record, reason, code, excerpt) for record in records])
        return RequestOutcome(error=self._stop(answer, reason, records))

    def failed(self, error: ExchangeError | OutfallError, records: Sequence[HttpRecord]) -> RequestOutcome[HttpRecord]:
        """Return the outcome of a request without a response."""
        if isinstance(error, TransientError):
            return RequestOutcome(retry=records, reason=str(error), together=True)
        if isinstance(error, OutfallError):
            return RequestOutcome(error=error)
        if error.fault is Fault.CONFIGURATION:
            return RequestOutcome(
                error=TargetError(
                    f"{self._place()} cannot be reached, and a retry will not help",
                    why=error.why,
                    do="correct the url, or the certificates (ca_bundle, client_certificate), or the host's resolver",
                )
            )
        return RequestOutcome(retry=records, reason=f"{self._place()}: {error.why}", together=True)

    def _items(self, per_item: PerItem, answer: Response, records: Sequence[HttpRecord]) -> RequestOutcome[HttpRecord]:
        if not answer.whole:
            return RequestOutcome(
                error=TargetError(
                    f"the response of {self._place()} is incomplete, and per_item needs all of it",
                    why=f"it is longer than {int(self._options.max_response_bytes)} bytes, or the connection broke",
                    do="raise max_response_bytes, or send fewer records per request",
                )
            )
        try:
            found = per_item(answer, len(records))
        except Exception as error:
            # Without the cause: its text, which a traceback shows, may quote the response. So the location is given
            # here.
            at = extract_tb(error.__traceback__)[1:2]
            where = "".join(f" in {os.path.basename(frame.filename)}, line {frame.lineno}" for frame in at)
            failed = TargetError(
                f"per_item cannot read the response of {self._place()} with status {answer.status}",
                why=f"it raised {type(error).__name__}{where}: {self._quoted(self._hide(str(error))[:300], records)};"
                f" {self._says(answer, records)}",
                do="correct per_item, or the server",
            )
            return RequestOutcome(error=failed)
        if len(found) != len(records):
            return RequestOutcome(
                error=ConfigurationError(
                    f"per_item returned {len(found)} statuses for {len(records)} records",
                    do="return one status per record, in order",
                )
            )
        # A plain status has no details about its record: the beginning of the response belongs to all records.
        alone = ItemResponse(0, excerpt=self._excerpt(answer)) if len(records) == 1 else ItemResponse(0)
        items = [item if isinstance(item, ItemResponse) else replace(alone, status=item) for item in found]
        verdicts = [self._statuses.verdict(item.status) for item in items]
        stopped = next((item for item, verdict in zip(items, verdicts, strict=True) if verdict in _STOPPING), None)
        if stopped is not None:
            return RequestOutcome(
                error=self._stop(answer, self._quoted(self._told(stopped, "a record"), records), records)
            )
        retried = [
            (record, item)
            for record, item, verdict in zip(records, items, verdicts, strict=True)
            if verdict is Verdict.RETRY
        ]
        first = self._refused(*retried[0]) if retried else None
        after = retry_after(answer.headers.get("retry-after"), longest=self._longest_pause)
        return RequestOutcome(
            retry=[record for record, _ in retried],
            dead=[
                self._refused(record, item)
                for record, item, verdict in zip(records, items, verdicts, strict=True)
                if verdict in (Verdict.SPLIT, Verdict.DEAD_LETTER)
            ],
            reason=None if first is None else first.reason,
            code=None if first is None else first.code,
            excerpt=None if first is None else first.excerpt,
            after=after,
            hold_host=after is not None,
        )

    def _refused(self, record: HttpRecord, item: ItemResponse) -> RefusedEntry[HttpRecord]:
        code = str(item.status) if item.code is None else self._hide(item.code)
        excerpt = None if item.excerpt is None else self._hide(item.excerpt[: 2 * _SHOWN])[:_SHOWN]
        return RefusedEntry(record, self._told(item, "this record"), code, excerpt)

    def _told(self, item: ItemResponse, about: str) -> str:
        reason = f": {self._hide(item.reason)[:_SHOWN]}" if item.reason else ""
        return f"{self._place()} responded with {item.status} for {about}{reason}"

    def _stop(self, answer: Response, reason: str, records: Sequence[HttpRecord]) -> TargetError:
        location = answer.headers.get("location")
        do = _HINTS.get(answer.status, "correct the options or the server; statuses= overrides the status table")
        if answer.status == 207:
            do = "pass per_item=, which reads the status of each record"
        elif location:
            masked = masked_location(location, self._options.url, self._options.url)
            do = f"correct the url, if it is now {masked[:200]!r}"
        return TargetError(reason, why=self._says(answer, records), do=do)

    def _excerpt(self, answer: Response) -> str:
        # More is masked than is shown, otherwise a truncated secret could appear at the end.
        return self._hide(answer.body[: 2 * _SHOWN].decode("utf-8", "replace"))[:_SHOWN]

    def _says(self, answer: Response, records: Sequence[HttpRecord]) -> str:
        excerpt = self._quoted(self._excerpt(answer), records)[:300].strip()
        return f"the message is {excerpt!r}" if excerpt else "the response has no message"

    def _quoted(self, text: str, records: Sequence[HttpRecord]) -> str:
        """Mask the values of the records that the request had, as far as `log_rows` requires it."""
        return text if self._rows.full else self._rows.quoted(text, [record.body.decode() for record in records])

    def _place(self) -> str:
        return masked(self._options.url)


_SHOWN = 4000
"""Maximum number of characters of a response in a dead letter."""
_BODILESS = (204, 205)
"""RFC 9110 §15.3.5 and §15.3.6: they have no body with single records."""
_STOPPING = (Verdict.STOP, Verdict.FOLLOW, Verdict.PER_ITEM)


def retry_after(
    value: str | None, *, longest: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """Return the seconds, from 0 to `longest`, that the header requests as a number or a date.

    Returns `None` if the header is invalid or negative, or missing (a `value` of `None`).
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return min(float(text), longest)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max((date - now()).total_seconds(), 0.0), longest)
