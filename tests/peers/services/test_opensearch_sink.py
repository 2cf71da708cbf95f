"""`OpenSearchSink` on a node of OpenSearch: the trials that the model of the default tests passes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.opensearch.model import Cluster
from tests.integration.support.opensearch_trials import TRIALS
from tests.peers.support.opensearch import OpenSearch


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_what_the_model_does_too(trial: Callable[[Any, str], None], opensearch: OpenSearch) -> None:
    trial(Cluster(opensearch.url), f"t-{secrets.token_hex(6)}")
