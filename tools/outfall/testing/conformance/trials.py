"""The trials of one sink, and what its checks may ask about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outfall.capabilities import Guarantee, SupportsTarget
from outfall.capability_checks import is_fixed, supports
from outfall.testing.conformance.faults import NotApplicableError, NotTriedError
from outfall.testing.conformance.harness import SinkHarness, gives, is_directory
from outfall.testing.conformance.trial import Trial, claim_of

BY_DEFAULT = {"lose", "lose_target", "breaking"}
"""What the suite does by itself to a target that is a directory."""


class Trials:
    """Makes trials of a sink. Each check gets one of these."""

    def __init__(self, harness: SinkHarness, directory: Path) -> None:
        """Work in a directory; one target is made in it to see what the sink is."""
        self.harness = harness
        self.directory = directory
        place = directory / "sample"
        place.mkdir(parents=True, exist_ok=True)
        self.target = harness.new_target(place)
        self.sink: Any = harness.make_sink(self.target)
        self.fixed = is_fixed(self.sink)
        self.claim = claim_of(harness, self.sink)

    def new(self, *, durable_log: bool = False) -> Trial:
        """Make a trial with an empty target."""
        return Trial(self.harness, self.directory, durable_log=durable_log)

    @property
    def once(self) -> bool:
        """Whether more is claimed than at-least-once."""
        return self.claim > Guarantee.AT_LEAST_ONCE

    @property
    def strict(self) -> bool:
        """Whether what cannot be tried fails the run."""
        return self.claim == Guarantee.EXACTLY_ONCE if self.harness.strict is None else self.harness.strict

    def needs(self, condition: bool, reason: str) -> None:
        """Say that the check does not apply unless the condition holds."""
        if not condition:
            raise NotApplicableError(reason)

    def needs_to_try(self, condition: bool, reason: str) -> None:
        """Leave the check untried unless the condition holds: what is claimed might still not be true."""
        if not condition:
            raise NotTriedError(reason, strict=self.strict)

    def needs_target(self) -> None:
        """Leave the check untried unless the sink compares its target with the recovery data."""
        self.needs_to_try(supports(self.sink, SupportsTarget), "the sink has no SupportsTarget")

    def needs_from_author(self, method: str) -> None:
        """Leave the check untried unless the author gives an optional method, or the target is a directory."""
        given = gives(self.harness, method) or (method in BY_DEFAULT and is_directory(self.target))
        self.needs_to_try(given, f"the test gives no {method}()")
