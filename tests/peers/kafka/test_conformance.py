"""Neither the sink with parts nor the one without is refuted by the conformance suite on Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.testing import SinkConformance, run_conformance
from tests.integration.kafka.test_parts_conformance import Parts
from tests.integration.kafka.test_stream_conformance import MORE, SHORT, Topics

pytestmark = pytest.mark.usefixtures("no_client_left")


@pytest.mark.parametrize("harness", [Parts, Topics], ids=["parts", "rows"])
def test_what_the_sink_declares_holds(harness: type[Topics], newest: str, tmp_path: Path) -> None:
    made = harness()
    made.address = newest
    report = run_conformance(made, tmp_path, checks=SHORT + MORE)
    assert report.passed, report


class OnNewest:
    @pytest.fixture(autouse=True)
    def _broker(self, newest: str) -> None:
        self.address = newest


class OnOldest:
    @pytest.fixture(autouse=True)
    def _broker(self, oldest: str) -> None:
        self.address = oldest


@pytest.mark.long
class TestPartsOnNewest(OnNewest, Parts, SinkConformance):
    """All checks."""


@pytest.mark.long
class TestPartsOnOldest(OnOldest, Parts, SinkConformance):
    """All checks."""


@pytest.mark.long
class TestRowsOnNewest(OnNewest, Topics, SinkConformance):
    """All checks."""
