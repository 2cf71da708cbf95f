"""The driver is killed (-9) while it streams real flights with its recovery data in Kafka, until the stream ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from outfall.kafka import KafkaRecoveryConfig
from outfall.recovery import history
from tests.integration.support.killed_driver import FORMAT_API, make_job
from tests.integration.support.reading import found

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]

STEPS = (
    "log: newest checked", "log: entry written", "after BEGIN", "before PREPARED", "after COMMITTING",
    "before COMPLETED", "log: entry cleaned up", "after clean-up",
)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "api"),
    [
        ("growing", "objects"),
        ("whole", "objects"),
        pytest.param("whole", "options", marks=FORMAT_API),
    ],
)
def test_each_flight_is_found_once_however_often_the_driver_is_killed(
    tmp_path: Path, config: Callable[..., KafkaRecoveryConfig], mode: str, api: str
) -> None:
    recovery = config()
    job, rows = make_job(tmp_path, mode, api, steps=STEPS)
    job.recovery = recovery.url()
    job.run_all()
    ids = Counter(row["id"] for row in found(job.out))
    assert ids.keys() == set(range(rows.num_rows))
    assert {flight: times for flight, times in ids.items() if times > 1} == {}
    assert not (tmp_path / "checkpoint" / "outfall").exists(), "the log was to be in Kafka"
    assert history(recovery)[-1].rows > 0
