"""Each check finds the fault that it is there for: sinks that are broken on purpose, and sinks that are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outfall.testing import SinkHarness, run_conformance
from outfall.testing.conformance import CHECKS
from tests.unit.support import conforming
from tests.unit.support.broken_sinks import BROKEN, Broken, careless, columns, databases, filed, keyed, naming, refusing

# What crashes leave open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

OF_THE_ENGINE = {"parts_removed", "epoch_rewound_or_ahead"}
"""What these find no sink can do: they are broken with the engine."""


@pytest.mark.parametrize(
    "broken",
    [pytest.param(broken, marks=pytest.mark.thorough) if broken.thorough else broken for broken in BROKEN],
    ids=[f"{broken.check}-{broken.harness.__name__}" for broken in BROKEN],
)
def test_a_broken_sink_is_found_by_the_check_that_names_its_fault(
    broken: Broken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.testing.conformance.checks.resources.SETTLED", 0.2)
    report = run_conformance(broken.harness(), tmp_path, checks=[broken.check])
    assert [result.outcome for result in report.results] == ["failed"]
    text = report.results[0].text
    assert re.search(broken.words, text, re.DOTALL), text


@pytest.mark.parametrize(
    ("harness", "check"),
    [
        (refusing.Requests, "refused_row"),
        (conforming.HoldingNewest, "late_zombie"),
        (conforming.HoldingNewest, "in_wrappers"),
        (naming.Names, "similar_keys"),
        (naming.RefusingNames, "similar_keys"),
        (keyed.Upserts, "null_in_a_key"),
        (keyed.NullSafeUpserts, "null_in_a_key"),
        (keyed.Upserts, "in_wrappers"),
        (keyed.ComparesVersions, "older_row_later"),
        (columns.Lines, "changed_layout"),
        (columns.StrictLines, "changed_layout"),
        (careless.ComparesIdentities, "lost_target"),
    ],
)
def test_a_sink_without_the_fault_passes_the_check(harness: type[SinkHarness], check: str, tmp_path: Path) -> None:
    report = run_conformance(harness(), tmp_path, checks=[check])
    assert [result.outcome for result in report.results] == ["passed"], str(report)


def test_every_check_has_a_broken_sink() -> None:
    assert set(CHECKS) == {broken.check for broken in BROKEN} | OF_THE_ENGINE


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("harness", "checks"),
    [
        (careless.NeverLooksAgain, ["copied_log", "log_copied_during_an_epoch"]),
        (careless.TakesCompletedRowsForLeftovers, ["log_copied_during_an_epoch"]),
        (careless.WritesOnAfterARestore, ["restored_target"]),
    ],
)
def test_no_check_but_those_of_copies_finds_a_sink_that_does_not_compare_its_target(
    harness: type[SinkHarness], checks: list[str], tmp_path: Path
) -> None:
    broken = harness()
    broken.most_cases = broken.schedules = 5
    report = run_conformance(broken, tmp_path)
    assert [result.check for result in report.failed] == checks, str(report)


SOUND = [
    conforming.Staging,
    conforming.InPlace,
    conforming.Bundling,
    conforming.Holding,
    conforming.Hoarding,
    careless.AtLeastOnce,
    filed.Renaming,
    databases.Database,
]


@pytest.mark.parametrize(
    ("harness", "most_cases"),
    [
        *(pytest.param(sound, 3, marks=pytest.mark.thorough) for sound in SOUND),
        *(pytest.param(sound, None, marks=pytest.mark.long) for sound in SOUND),
    ],
)
def test_a_sink_that_does_what_it_claims_passes(
    harness: type[SinkHarness], most_cases: int | None, tmp_path: Path
) -> None:
    sound = harness()
    sound.most_cases, sound.schedules = most_cases, most_cases or 50
    report = run_conformance(sound, tmp_path)
    assert report.passed, str(report)


def test_an_engine_that_forgets_parts_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "outfall.protocol.takeover.listed_parts", lambda step, resolved, recorded: tuple(resolved.sink.list_parts())
    )
    (result,) = run_conformance(conforming.InPlace(), tmp_path, checks=["parts_removed"]).results
    assert result.outcome == "failed"
    assert "disappeared from list_parts()" in result.text


def test_an_engine_that_takes_any_epoch_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("outfall.protocol.takeover.check_batch", lambda *arguments, **options: None)
    (result,) = run_conformance(conforming.Staging(), tmp_path, checks=["epoch_rewound_or_ahead"]).results
    assert result.outcome == "failed"
    assert "Spark ran batch" in result.text
