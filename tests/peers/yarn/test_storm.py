"""A stream in cluster mode loses and doubles no row, however often its drivers stand still, die and come back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Databases
from tests.integration.support.sql import FLIGHTS
from tests.peers.support.yarn import Yarn
from tests.peers.support.yarn_job import YarnJob, chance_of
from tests.peers.support.yarn_storm import Storm

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]

ROUNDS = int(os.environ.get("OUTFALL_TEST_KILLS", "1"))
FAULTS = ("stop", "stop", "kill", "end container", "lose host")
"""Of a round, in an order by chance; a resource manager that was killed starts the next driver after each."""


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("place", ["hdfs", "shared", "postgres"])
def test_drivers_that_stand_still_die_and_come_back_lose_and_double_nothing(
    yarn: Yarn, postgres: Databases, tmp_path: Path, place: str, number: int
) -> None:
    job = YarnJob(yarn, tmp_path, place)
    if place == "postgres":
        job.dsn = Target(postgres.new_database(), f"CREATE TABLE t ({FLIGHTS})").dsn
    chance = chance_of(place, number)
    storm = Storm(job, chance)
    storm.go(["restart manager", *chance.sample(FAULTS, len(FAULTS))])
    print(place, storm.figures(), storm.steps)
