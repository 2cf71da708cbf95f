"""Counters: summed, but for peaks, and named by the child of a sink made of sinks."""

from __future__ import annotations

import pytest

from outfall.contexts import Metrics
from outfall.wrappers.children import ChildMetrics


def test_counts_are_summed_and_peaks_are_not() -> None:
    total = Metrics({"rows": 2, "max_in_flight": 5})
    total.add_all({"rows": 3, "max_in_flight": 4, "archive.max_limit": 7})
    total.add_all({"archive.max_limit": 6})
    assert total.counts == {"rows": 5, "max_in_flight": 5, "archive.max_limit": 7}


def test_a_peak_is_named_as_one() -> None:
    with pytest.raises(ValueError, match="begins with 'max_', not 'in_flight'"):
        Metrics().peak("in_flight", 1)


def test_a_child_counts_under_its_name_and_in_its_parents_sums() -> None:
    parent = Metrics({"requests": 1, "max_in_flight": 3})
    child = ChildMetrics(parent, "archive")
    child.add_all({"rows": 4, "requests": 2, "max_in_flight": 5})
    child.add_all({"max_in_flight": 4})
    assert child.counts == {"rows": 4, "requests": 2, "max_in_flight": 5}
    assert parent.counts == {
        "requests": 3,
        "max_in_flight": 5,
        "archive.rows": 4,
        "archive.requests": 2,
        "archive.max_in_flight": 5,
    }
