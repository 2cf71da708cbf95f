"""Runs the checks of a sink, without pytest."""

from __future__ import annotations

import difflib
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import outfall.testing.conformance.checks  # noqa: F401 - fills CHECKS
from outfall.errors import ConfigurationError
from outfall.testing.conformance.faults import ConformanceError, NotApplicableError
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.quiet import quiet
from outfall.testing.conformance.registry import CHECKS
from outfall.testing.conformance.trials import Trials


@dataclass(frozen=True)
class CheckResult:
    """What came of one check."""

    check: str
    outcome: Literal["passed", "failed", "not applicable"]
    text: str = ""
    """The fault, or why the check does not apply."""
    seconds: float = 0.0


@dataclass(frozen=True)
class ConformanceReport:
    """What came of all checks of a sink."""

    results: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> list[CheckResult]:
        """The checks that found a fault."""
        return [result for result in self.results if result.outcome == "failed"]

    def __str__(self) -> str:
        lines = []
        for result in self.results:
            lines.append(f"{result.outcome:<15} {result.check} ({result.seconds:.2f} s)")
            lines += [f"    {line}" for line in result.text.splitlines()]
        return "\n".join(lines)


def run_check(harness: SinkHarness, name: str, directory: Path) -> None:
    """Run one check in a directory of its own.

    Raises:
        ConformanceError: the sink does not do what it claims.
        NotApplicableError: the check says nothing about this sink, or its author gave it up.
    """
    _check_names(harness.not_claimed)
    if name in harness.not_claimed:
        raise NotApplicableError(f"not claimed: {harness.not_claimed[name]}")
    CHECKS[name].run(Trials(harness, directory))


def run_conformance(
    harness: SinkHarness, directory: Path | None = None, *, checks: Iterable[str] | None = None
) -> ConformanceReport:
    """Run checks of a sink one after the other, whatever they find.

    Args:
        harness: how to make the sink and read its target.
        directory: where targets and recovery data are made; a temporary one if left out.
        checks: names of checks; all if left out.

    Returns:
        What each found.

    Raises:
        ConfigurationError: a name is not that of a check.
    """
    names = list(CHECKS if checks is None else checks)
    _check_names(names)
    if directory is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_conformance(harness, Path(temporary), checks=names)
    with quiet():
        return ConformanceReport([_result(harness, name, directory / name) for name in names])


def _result(harness: SinkHarness, name: str, directory: Path) -> CheckResult:
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    outcome: Literal["passed", "failed", "not applicable"] = "passed"
    text = ""
    try:
        run_check(harness, name, directory)
    except NotApplicableError as reason:
        outcome, text = "not applicable", str(reason)
    except ConformanceError as fault:
        outcome, text = "failed", str(fault)
    except Exception:
        outcome, text = "failed", traceback.format_exc()
    return CheckResult(name, outcome, text, time.monotonic() - started)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in CHECKS:
            near = difflib.get_close_matches(name, CHECKS, n=1)
            raise ConfigurationError(
                f"there is no check {name!r}", do=f"write {near[0]!r}" if near else f"choose from {', '.join(CHECKS)}"
            )
