"""Finds the rows that a target refuses among many, by halves.

A statement or a COPY tells that one of its rows is refused, not which, nor whether there are others. Each try runs in a
savepoint (manual, SQL SAVEPOINT), so that what a refused one did is undone and what the others did stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg

from outfall.errors import OutfallError, ValueRefusedError
from outfall.postgres.copy_values import RefusedRowError


@dataclass(frozen=True)
class Refusal:
    """Why a row is refused."""

    reason: str
    code: str | None = None
    """The SQLSTATE, where the server told."""
    detail: str | None = None
    do: str = "correct or leave out the row, or change the table"

    @classmethod
    def of(cls, error: psycopg.Error | RefusedRowError) -> Refusal:
        """Take what the server or the encoder said."""
        if isinstance(error, RefusedRowError):
            return cls(error.reason, do=error.do or cls.do)
        diagnosis = error.diag
        return cls(diagnosis.message_primary or str(error).strip(), error.sqlstate, diagnosis.message_detail)

    def __str__(self) -> str:
        """Return reason, detail and code in one sentence."""
        text = "; ".join(part for part in (self.reason, self.detail) if part)
        return f"{text} (SQLSTATE {self.code})" if self.code else text


def isolate(first: int, after: int, attempt: Callable[[int, int], Refusal | None]) -> Iterator[tuple[int, Refusal]]:
    """Apply all rows but those that are refused, and yield these one by one, lowest first.

    Takes about 2 · log2(after - first) attempts for each row that is refused, and one if none is. The same rows in the
    same order give the same result.

    Args:
        first: the position of the first row.
        after: the one behind the last.
        attempt: applies the rows from a position to another, exclusive, or none of them, and tells why.
    """
    spans = [(first, after)] if first < after else []
    while spans:
        low, high = spans.pop()
        refusal = attempt(low, high)
        if refusal is None:
            continue
        if high - low == 1:
            yield low, refusal
            continue
        middle = (low + high) // 2
        spans += [(middle, high), (low, middle)]


def too_many(
    most: int, name: str, refusal: Refusal, *, step: str | None = None, epoch: int | None = None
) -> OutfallError:
    """Make the error for an epoch with more refused rows than may become dead letters."""
    return ValueRefusedError(
        f"more than {most} rows of this epoch are refused, {name} among them",
        step=step,
        epoch=epoch,
        why=str(refusal),
        do="correct the rows or the table; or raise max_dead_letters, if so many are meant to be set aside",
    )
