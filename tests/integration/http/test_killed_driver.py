"""The driver is killed (-9) while it streams real flights to a web server, and started again until the stream ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.support.flights import COLUMNS
from tests.integration.support.http_receiver import accepted
from tests.integration.support.killed_driver import make_job

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]

STEPS = ("after BEGIN", "http: before request", "before PREPARED", "before COMPLETED")


@pytest.mark.parametrize(("mode", "kept"), [("item", "items"), ("content", "keys")])
def test_the_server_accepts_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, receiver_url: str, mode: str, kept: str
) -> None:
    target = f"{receiver_url}/{kept}-killed"
    job, rows = make_job(tmp_path, mode, "objects", dsn=target, steps=STEPS)
    job.run_all()
    found = Counter(tuple(record.get(name) for name in COLUMNS) for record in accepted(target))
    wanted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert found - wanted == Counter()
    assert wanted - found == Counter()
