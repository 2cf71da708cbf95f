"""What several runs say together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Spread:
    """A median and how far the figures lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        """Describe at least one figure."""
        return cls(statistics.median(figures), min(figures), max(figures))


def spread(figures: Sequence[float | None]) -> Spread | None:
    """Return the median, the least and the greatest of the figures that are known; `None` if none is."""
    known = [figure for figure in figures if figure is not None]
    return Spread.of(known) if known else None


def ratios(figures: Sequence[float | None], against: Sequence[float | None]) -> list[float]:
    """Divide each figure by that of the same pair: what slowed the machine down then slowed both."""
    return [a / b for a, b in zip(figures, against, strict=True) if a is not None and b]
