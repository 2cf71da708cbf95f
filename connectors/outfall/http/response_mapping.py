"""Maps a response to the outcome of its records, and to the pause that the server requests."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from dataclasses import replace
from traceback import extract_tb

from outfall.async_sink import RefusedEntry, RequestOutcome
from outfall.async_sink.responses import retry_after
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.http.items import ItemResponse, PerItem
from outfall.http.options import HttpOptions
from outfall.http.records import HttpRecord
from outfall.http.redaction import masked_location
from outfall.http.statuses import Statuses, Verdict
from outfall.http.transport import ExchangeError, Fault, Response
from outfall.row_logging import RowLog
from outfall.urls import masked

_HINTS = {
    401: "correct the credentials",
    403: 'grant the permission, or correct the credentials; if it is the limit of a rate, set statuses="403=retry"',
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
        unread = None
        if self._per_item is not None and verdict in _OF_RECORDS and answer.status not in _BODILESS:
            found = self._read_items(self._per_item, answer, records)
            accepted = verdict in (Verdict.COMPLETE, Verdict.PER_ITEM)
            if isinstance(found, OutfallError) and accepted:
                return RequestOutcome(error=found)
            outcome = RequestOutcome() if isinstance(found, OutfallError) else self._judge(found, answer, records)
            if accepted or outcome.error is not None or outcome.dead or outcome.retry:
                return outcome
            unread = found if isinstance(found, OutfallError) else None
        if verdict is Verdict.COMPLETE:
            return RequestOutcome()
        if verdict in (Verdict.SPLIT, Verdict.DEAD_LETTER):
            return self._refused(verdict, answer, records, unread)
        reason, code, excerpt = self._said(answer)
        if verdict is Verdict.RETRY or self._limits(answer):
            after = retry_after(answer.headers.get("retry-after"), longest=self._longest_pause)
            return RequestOutcome(
                retry=records, reason=reason, code=code, excerpt=excerpt, after=after, hold_host=after is not None,
                together=True,
            )  # fmt: skip
        return RequestOutcome(error=self._stop(answer, reason, records))

    def _said(self, answer: Response) -> tuple[str, str, str]:
        """Return reason, code and excerpt."""
        return f"{self._place()} responded with {answer.status}", str(answer.status), self._excerpt(answer)

    def _limits(self, answer: Response) -> bool:
        """Whether a 403 is the limit of a rate, which passes, and no missing right: it asks for a pause then."""
        given = answer.headers.get("retry-after")
        asked = answer.status == 403 and retry_after(given, longest=self._longest_pause) is not None
        return asked and 403 not in self._options.statuses

    def _refused(
        self,
        verdict: Verdict,
        answer: Response,
        records: Sequence[HttpRecord],
        unread: OutfallError | None,
    ) -> RequestOutcome[HttpRecord]:
        """Return the outcome of a request that was refused because of a record that its response does not name.

        `unread` is why the response could not be read for one.
        """
        reason, code, excerpt = self._said(answer)
        if len(records) == 1 or verdict is Verdict.SPLIT or self._options.idempotency == "item":
            return RequestOutcome(split=records, reason=reason, code=code, excerpt=excerpt)
        why = (
            f"the server may have stored some of them, so none is sent again or diverted; {self._says(answer, records)}"
        )
        if unread is not None:
            why += f"; {unread.what}"
        return RequestOutcome(
            error=TargetError(
                f"{reason} for a request with {len(records)} records, and does not name the record at fault",
                why=why,
                do=f'set statuses="{answer.status}=split" if the server stores nothing of a request that it refuses, or'
                ' idempotency="item" if it drops records that it has stored before; or set failed_item or item_status'
                " if its response names the record (in Python also per_item); or send one record per request"
                " (max_batch_size=1)",
            )
        )

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

    def _read_items(
        self, per_item: PerItem, answer: Response, records: Sequence[HttpRecord]
    ) -> Sequence[int | ItemResponse | None] | OutfallError:
        """Return what a response has for each record, or why it cannot be read."""
        if not answer.whole:
            return TargetError(
                f"the response of {self._place()} is incomplete, and its records cannot be read",
                why=f"it is longer than {int(self._options.max_response_bytes)} bytes, or the connection broke",
                do="raise max_response_bytes, or send fewer records per request",
            )
        try:
            found = per_item(answer, len(records))
        except Exception as error:
            # Without the cause: its text, which a traceback shows, may quote the response. So the location is given
            # here.
            at = extract_tb(error.__traceback__)[1:2]
            where = "".join(f" in {os.path.basename(frame.filename)}, line {frame.lineno}" for frame in at)
            return TargetError(
                f"per_item cannot read the response of {self._place()} with status {answer.status}",
                why=f"it raised {type(error).__name__}{where}: {self._quoted(self._hide(str(error))[:300], records)};"
                f" {self._says(answer, records)}",
                do="correct per_item, item_status or failed_item, or the server",
            )
        if found is None or len(found) != len(records):
            return ConfigurationError(
                f"per_item returned {0 if found is None else len(found)} statuses for {len(records)} records",
                do="return one status per record, in order; item_status must lead to one status per record",
            )
        return found

    def _judge(
        self, found: Sequence[int | ItemResponse | None], answer: Response, records: Sequence[HttpRecord]
    ) -> RequestOutcome[HttpRecord]:
        """Return the outcome of each record by what the response has for it."""
        # A plain status has no details about its record: the beginning of the response belongs to all records.
        alone = ItemResponse(0, excerpt=self._excerpt(answer)) if len(records) == 1 else ItemResponse(0)
        given = [(record, item) for record, item in zip(records, found, strict=True) if item is not None]
        unprocessed = [record for record, item in zip(records, found, strict=True) if item is None]
        items = [item if isinstance(item, ItemResponse) else replace(alone, status=item) for _, item in given]
        verdicts = [self._statuses.of_record(item.status) for item in items]
        judged = [(record, item, verdict) for (record, _), item, verdict in zip(given, items, verdicts, strict=True)]
        stopped = next((item for item, verdict in zip(items, verdicts, strict=True) if verdict in _STOPPING), None)
        if stopped is not None:
            return RequestOutcome(
                error=self._stop(answer, self._quoted(self._told(stopped, "a record"), records), records)
            )
        retried = [(record, item) for record, item, verdict in judged if verdict is Verdict.RETRY]
        first = self._refusal(*retried[0]) if retried else None
        after = retry_after(answer.headers.get("retry-after"), longest=self._longest_pause)
        return RequestOutcome(
            retry=[record for record, _ in retried],
            dead=[
                self._refusal(record, item)
                for record, item, verdict in judged
                if verdict in (Verdict.SPLIT, Verdict.DEAD_LETTER)
            ],
            unprocessed=unprocessed,
            reason=None if first is None else first.reason,
            code=None if first is None else first.code,
            excerpt=None if first is None else first.excerpt,
            after=after,
            hold_host=after is not None,
        )

    def _refusal(self, record: HttpRecord, item: ItemResponse) -> RefusedEntry[HttpRecord]:
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
            do = "set item_status, or in Python per_item, which read the status of each record"
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
_OF_RECORDS = (Verdict.COMPLETE, Verdict.PER_ITEM, Verdict.SPLIT, Verdict.DEAD_LETTER)
"""Verdicts of responses that may say something about single records."""
_STOPPING = (Verdict.STOP, Verdict.FOLLOW, Verdict.PER_ITEM)
