"""Collects the outcome of each row of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from outfall.async_sink import ErrorAction, RefusedEntry, RequestOutcome
from outfall.errors import OutfallError, TargetError
from outfall.versioned.draws import Answer
from outfall.versioned.rows import KeyedRow

Resolve = Callable[[Sequence[tuple[KeyedRow, Answer]]], OutfallError | None]


class Outcomes:
    """Collects the outcomes of rows. Rows without an outcome count as written."""

    def __init__(self) -> None:
        """Start with rows that were all written."""
        self._answers: list[tuple[KeyedRow, Answer]] = []
        self._retry: list[KeyedRow] = []
        self._split: list[KeyedRow] = []
        self._dead: list[RefusedEntry[KeyedRow]] = []
        self._error: BaseException | None = None
        self._reason: tuple[str, str | None] | None = None

    def answered(self, entry: KeyedRow, answer: Answer) -> None:
        """Add what the server did with a row."""
        if answer is not Answer.WRITTEN:
            self._answers.append((entry, answer))

    def failed(
        self,
        entries: Sequence[KeyedRow],
        action: ErrorAction,
        reason: str,
        code: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Add rows that failed together. `error` fails the query if `action` is `FATAL`."""
        if action is ErrorAction.FATAL:
            self._error = self._error or error or TargetError("the destination failed a request", why=reason)
        elif action is ErrorAction.RETRY:
            self._retry += entries
        elif len(entries) == 1:
            self._dead.append(RefusedEntry(entries[0], reason, code))
        else:
            self._split += entries
        if action is ErrorAction.RETRY or self._reason is None:
            self._reason = reason, code

    def result(self, resolve: Resolve) -> RequestOutcome[KeyedRow]:
        """Return it all. `resolve` counts the answers, and returns the error if one fails the query."""
        error = resolve(self._answers) or self._error
        if error is not None:
            return RequestOutcome(error=error)
        reason, code = self._reason or (None, None)
        return RequestOutcome(retry=self._retry, split=self._split, dead=self._dead, reason=reason, code=code)


def counted(answers: Iterable[tuple[KeyedRow, Answer]], *, by_sequence: bool) -> Counter[str]:
    """Return the answers by the names of the counters that they add to.

    Rows with a sequence replace older ones of any epoch, which is no news.
    """
    names = {Answer.SAME: "repeated_writes"}
    names |= (
        {Answer.OUTRANKED: "changes_stale"}
        if by_sequence
        else {Answer.REPLACED: "replaced_rows", Answer.OUTRANKED: "replaced_rows"}
    )
    return Counter(names[answer] for _, answer in answers if answer in names)
