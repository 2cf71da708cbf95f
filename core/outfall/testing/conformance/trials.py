"""The trials of one sink, and what its checks may ask about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outfall.capabilities import Guarantee
from outfall.sink_shape import is_fixed
from outfall.testing.conformance.faults import NotApplicableError
from outfall.testing.conformance.harness import SinkHarness, gives
from outfall.testing.conformance.trial import Trial, claim_of


class Trials:
    """Makes trials of a sink. Each check gets one of these."""

    def __init__(self, harness: SinkHarness, directory: Path) -> None:
        """Work in a directory; one target is made in it to see what the sink is."""
        self.harness = harness
        self.directory = directory
        place = directory / "sample"
        place.mkdir(parents=True, exist_ok=True)
        self.sink: Any = harness.make_sink(harness.new_target(place))
        self.fixed = is_fixed(self.sink)
        self.claim = claim_of(harness, self.sink)

    def new(self, *, durable_log: bool = False) -> Trial:
        """Make a trial with an empty target."""
        return Trial(self.harness, self.directory, durable_log=durable_log)

    @property
    def once(self) -> bool:
        """Whether more is claimed than at-least-once."""
        return self.claim > Guarantee.AT_LEAST_ONCE

    def needs(self, condition: bool, reason: str) -> None:
        """Leave the check out unless the condition holds."""
        if not condition:
            raise NotApplicableError(reason)

    def needs_capability(self, capability: type) -> None:
        """Leave the check out unless the sink has a capability."""
        self.needs(isinstance(self.sink, capability), f"the sink has no {capability.__name__}")

    def needs_from_author(self, method: str) -> None:
        """Leave the check out unless the author gives an optional method."""
        self.needs(gives(self.harness, method), f"the test gives no {method}()")
