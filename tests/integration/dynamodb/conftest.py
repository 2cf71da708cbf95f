"""One emulator for the whole run, without faults at the start of each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.integration.dynamodb.server import Dynamo, Faults, dynamo_server


@pytest.fixture(scope="session")
def dynamo_of_the_run() -> Iterator[Dynamo]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "outfall")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "outfall-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with dynamo_server() as dynamo:
            yield dynamo


@pytest.fixture
def dynamo(dynamo_of_the_run: Dynamo) -> Dynamo:
    dynamo_of_the_run.faults.__dict__.update(Faults().__dict__)
    return dynamo_of_the_run


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"t-{secrets.token_hex(6)}"
