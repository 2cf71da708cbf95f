"""Apache Kafka refuses a batch of which one record is invalid: no other row is lost or diverted by it."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.integration.support import kafka_refused

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("broker", ["newest", pytest.param("oldest", marks=pytest.mark.long)])
@pytest.mark.parametrize("error", kafka_refused.TOPICS)
@pytest.mark.parametrize(("count", "bad"), [(10, {5}), (3000, {0, 1500, 1501, 2999})])
def test_only_the_row_at_fault_is_a_dead_letter(
    request: pytest.FixtureRequest, broker: str, tmp_path: Path, error: str, count: int, bad: set[int]
) -> None:
    if (broker, error) == ("oldest", "INVALID_TIMESTAMP"):
        pytest.skip("Apache Kafka 2.8 has no message.timestamp.after.max.ms")
    address, topic = request.getfixturevalue(broker), f"r-{secrets.token_hex(6)}"
    kafka_refused.make_topic(address, topic, error)
    rows = kafka_refused.rows(count, bad, error)
    counts = kafka_refused.write(address, topic, tmp_path, rows)
    kafka_refused.check(address, topic, tmp_path, rows, bad, error)
    assert (counts["sent"], counts["dead_letters"]) == (count - len(bad), len(bad))
