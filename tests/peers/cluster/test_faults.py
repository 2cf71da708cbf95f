"""Hosts are cut off, executors and drivers killed, stopped and replaced: nothing is lost, nothing doubled."""

from __future__ import annotations

import os

import pytest

from tests.peers.support.cluster_run import Faults, Run, ends
from tests.peers.support.cluster_targets import MODES, Targets
from tests.peers.support.spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.faults]

SEED = os.environ.get("OUTFALL_TEST_SEED", "20261124")
ROUNDS = 10 * int(os.environ.get("OUTFALL_TEST_KILLS", "1"))


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, ROUNDS))])
def test_ten_faults_of_hosts_lose_and_double_nothing(cluster: Cluster, targets: Targets, number: int) -> None:
    long = number > 0
    # The first round is the short one, in which whole files stand for those that Spark's writer encodes.
    run = Run(cluster, targets, cluster.network.folder / f"run-{number}", modes=(*MODES, "by spark") if long else MODES)
    before = cluster.speculative()
    try:
        Faults(run, f"{SEED} {number}", longest=45 if long else 12, stop_drivers=long).go(10)
        run.finish()
        speculative = cluster.speculative() - before
        fenced = sum("FencedError" in " ".join(ends(driver).values()) for driver in run.replaced)
        found = run.found()
        for mode, (rows, lost, doubled) in found.items():
            print(f"{mode}: {rows} rows, {lost} lost, {doubled} doubled")
        print(
            {
                "faults": run.faults(),
                **run.counts,
                "replaced drivers": len(run.replaced),
                "fenced": fenced,
                "speculative": speculative,
            }
        )
        for driver in run.replaced:
            print(driver.name, ends(driver))
    finally:
        run.close()
    assert {mode: figures[1:] for mode, figures in found.items()} == dict.fromkeys(found, (0, 0))
    assert speculative
