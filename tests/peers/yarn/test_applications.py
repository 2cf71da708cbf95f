"""Jobs on YARN lose and double no row, whatever YARN loses of them."""

from __future__ import annotations

import pytest

from tests.integration.support.waiting import until
from tests.peers.support.yarn import Yarn
from tests.peers.support.yarn_job import YarnJob

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.mark.parametrize("step", ["before PREPARED", pytest.param("before commit", marks=pytest.mark.long)])
def test_a_driver_that_stood_still_until_the_second_attempt_is_fenced(job: YarnJob, step: str) -> None:
    job.feed(2)
    job.tell("stop", step)
    running = job.start()
    zombie = running.stop(at=step)
    until(lambda: job.progress() == job.rows, "the second attempt's rows")
    running.await_success()
    before = job.content()
    zombie.wake(python_until=zombie.refused)
    zombie.await_end()
    assert zombie.refused()
    assert job.content() == before
    assert len(running.attempts()) > 1
    job.check()


def test_executors_of_a_node_manager_that_was_killed_write_nothing_twice(yarn: Yarn, job: YarnJob) -> None:
    """YARN starts others elsewhere, while they live on."""
    job.place = "growing"
    job.feed(2)
    running = job.start("client", goes_on=True)
    until(lambda: job.progress() > 0, "rows")
    host, _ = until(running.executors, "an executor")[0]
    host.manager.kill()
    until(lambda: host.address not in yarn.alive(), "the loss of the node manager")
    job.feed(2)
    until(lambda: job.progress() == job.rows, "all rows")
    job.enough.touch()
    running.await_success()
    job.check()
