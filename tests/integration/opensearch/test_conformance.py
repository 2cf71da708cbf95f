"""`OpenSearchSink` is effectively once, as it says: the whole conformance suite, on the model."""

from __future__ import annotations

import pytest

from outfall.testing import SinkConformance
from tests.integration.opensearch.harness import Documents
from tests.integration.opensearch.model import Cluster


@pytest.mark.long
class TestDocuments(Documents, SinkConformance):
    @pytest.fixture(autouse=True)
    def services(self, cluster: Cluster) -> None:
        self.cluster = cluster
