"""The example of a sink with state, and a sink of Bytewax: at least once, as they say, and no more than that."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outfall.capabilities import Guarantee
from outfall.testing import SinkConformance, SinkHarness, run_conformance

ROOT = Path(__file__).parents[3]
UNFENCED = "the sink takes no writer context, so that a task of an older attempt that wakes late cannot be told apart"
BLIND = "the sink has no SupportsTarget, so that another query writes over what it finds"
WITHOUT_FENCE = {
    "lost_log": BLIND,
    "second_query": BLIND,
    "stalled_attempt": UNFENCED,
    "late_zombie": UNFENCED,
    "zombie_of_an_older_generation": UNFENCED,
    "old_driver_wakes": UNFENCED,
    "random_schedules": UNFENCED,
}
"""What `requires` nobody can declare for a sink without a writer context: that its older attempts have ended."""


def my_sink() -> ModuleType:
    """Import the example under its own name, so that its sink can be pickled."""
    if "my_sink" not in sys.modules:
        pytest.importorskip("pyspark")
        spec = importlib.util.spec_from_file_location("my_sink", ROOT / "examples" / "my_sink.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["my_sink"] = module
        spec.loader.exec_module(module)
    return sys.modules["my_sink"]


class Miles(SinkHarness):
    """Totals of miles: one row is one mile of a carrier of its own."""

    not_claimed = WITHOUT_FENCE

    def make_sink(self, target: Any) -> Any:
        return my_sink().MilesSink(target, parts=3)

    def read(self, target: Any) -> Iterable[Any]:
        for path in target.glob("miles-*.json"):
            for carrier, miles in json.loads(path.read_text()).items():
                yield from [{"carrier": carrier, "distance": 1}] * miles

    def row(self, number: int) -> Any:
        return {"carrier": f"Ä{number}", "distance": 1}


class InShort(SinkConformance):
    """Each check over some of its cases, without those that take seconds all the same."""

    most_cases = schedules = 2
    test_memory_over_epochs = test_files_and_threads_stay_flat = None
    test_crash_at_every_line = test_killed_at_every_step = None


class TestMilesInShort(Miles, InShort):
    pass


@pytest.mark.thorough
class TestMiles(Miles, SinkConformance):
    pass


def test_the_example_cannot_be_fenced_and_the_suite_finds_it(tmp_path: Path) -> None:
    class Claimed(Miles):
        not_claimed = {}

    report = run_conformance(Claimed(), tmp_path, checks=["zombie_of_an_older_generation", "late_zombie"])
    assert "AT_LEAST_ONCE does not hold" in report.failed[0].text


def test_the_example_is_not_exactly_once_if_its_test_says_so(tmp_path: Path) -> None:
    class Claimed(Miles):
        claim = Guarantee.EXACTLY_ONCE

    assert run_conformance(Claimed(), tmp_path, checks=["declared_guarantee"]).failed


class BytewaxDirectory(SinkConformance):
    """`bytewax.connectors.files.DirSink`, unchanged."""

    not_claimed = WITHOUT_FENCE | {
        "attempt_after_the_winner": UNFENCED,
        "loss_of_power": "the directory is never synced, so that the names of new files may be gone",
    }

    @pytest.fixture(autouse=True)
    def bytewax(self) -> None:
        pytest.importorskip("bytewax")

    def make_sink(self, target: Any) -> Any:
        from bytewax.connectors.files import DirSink

        return DirSink(target, 3)

    def read(self, target: Any) -> Iterable[Any]:
        return [line for path in target.iterdir() for line in path.read_text().splitlines()]

    def row(self, number: int) -> Any:
        return f"row {number}: ä€𝄞"


@pytest.mark.thorough
class TestBytewaxDirectory(BytewaxDirectory):
    pass
