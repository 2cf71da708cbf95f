"""`outfall doctor` against the emulated services."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.errors import TargetError, TransientError
from outfall.kinesis import FirehoseSink, KinesisSink
from tests.integration.kinesis.server import Aws
from tests.integration.support.servers import free_port


def test_streams_that_are_there_are_described_and_stay_empty(aws: Aws, name: str) -> None:
    aws.new_stream(name, shards=2)
    aws.new_delivery_stream(name)
    where: dict[str, Any] = {"endpoint_url": aws.endpoint, "region": "us-east-1"}
    assert "is ACTIVE; open shards: 2" in KinesisSink(name, **where).check_connection()[0]
    assert "is ACTIVE" in FirehoseSink(name, **where).check_connection()[0]
    assert (aws.records(name), aws.lines(name)) == ([], [])


@pytest.mark.parametrize("kind", [KinesisSink, FirehoseSink])
def test_streams_that_are_not_there_and_services_that_do_not_answer_are_errors(kind: Any, aws: Aws, name: str) -> None:
    with pytest.raises(TargetError, match="What to do: create it"):
        kind(name, endpoint_url=aws.endpoint, region="us-east-1").check_connection()
    port = free_port()
    with pytest.raises(TransientError, match="open the network path"):
        kind(name, endpoint_url=f"http://127.0.0.1:{port}", region="us-east-1").check_connection()
