"""Where refused entries go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from outfall.async_sink.counters import Counters
from outfall.async_sink.result import Refusal
from outfall.contexts import WriterInitContext
from outfall.dead_letter import EXCERPT_CHARACTERS, DeadLetter
from outfall.errors import ValueRefusedError

E = TypeVar("E")

NOT_CONVERTIBLE = "not_convertible"
"""The code of rows of which no entry could be made."""


class LetterBox(Generic[E]):
    """Makes dead letters of refused entries, and hands them over; without a taker a refusal stops the query."""

    def __init__(self, text_of: Callable[[E], str], context: WriterInitContext | None, counters: Counters) -> None:
        """Start without a taker."""
        self.take: Callable[[Sequence[DeadLetter]], None] | None = None
        self._text_of = text_of
        self._context = context
        self._counters = counters

    def put(self, refusals: Sequence[Refusal[E]]) -> None:
        """Hand over refused entries.

        Raises:
            ValueRefusedError: there is nobody to take them.
            Exception: whatever the taker raises.
        """
        if not refusals:
            return
        if self.take is None:
            raise self._refused(refusals[0])
        self.take([self._letter(self._text_of(refusal.entry), refusal) for refusal in refusals])
        self._counters.dead(len(refusals))

    def put_row(self, text: str, error: ValueRefusedError) -> None:
        """Hand over a row that did not become an entry.

        Args:
            text: the row as JSON text.
            error: why not.

        Raises:
            ValueRefusedError: the error, when there is nobody to take the row.
            Exception: whatever the taker raises.
        """
        if self.take is None:
            raise error
        self.take([self._letter(text, Refusal(None, error.what, NOT_CONVERTIBLE))])
        self._counters.dead(1)

    def _letter(self, row: str, refusal: Refusal[Any]) -> DeadLetter:
        context = self._context
        return DeadLetter(
            row=row,
            reason=refusal.reason,
            step=context.step_id if context else "",
            epoch=context.epoch if context else None,
            part=f"writer-{context.worker_index}" if context else None,
            code=refusal.code,
            excerpt=refusal.excerpt,
        )

    def _refused(self, refusal: Refusal[E]) -> ValueRefusedError:
        code = f" ({refusal.code})" if refusal.code else ""
        return ValueRefusedError(
            f"the record {self._text_of(refusal.entry)[:EXCERPT_CHARACTERS]} is refused{code}",
            step=self._context.step_id if self._context else None,
            epoch=self._context.epoch if self._context else None,
            why=refusal.reason + said(refusal.excerpt),
            do="correct or leave out the row, or give the sink a dead_letter sink to keep such rows in",
        )


def said(excerpt: str | None) -> str:
    """Return what a destination said, for the end of an error's sentence; nothing if it said nothing."""
    text = (excerpt or "")[:_SAID].strip()
    return f", and says {text!r}" if text else ""


_SAID = 300
"""Characters of an answer in an error."""
