"""A driver whose host was cut off comes back when another one has written all: nothing changes."""

from __future__ import annotations

import pytest

from tests.peers.support.cluster_run import Run, cut_off, ends, heal
from tests.peers.support.cluster_targets import Targets
from tests.peers.support.spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.faults]

FENCED = ("FencedError", "StaleWriterError", "CONCURRENT_STREAM_LOG_UPDATE")


@pytest.mark.long
@pytest.mark.parametrize("first", ["c", "a"], ids=["on its own", "beside executors"])
def test_a_driver_that_comes_back_changes_nothing(cluster: Cluster, targets: Targets, first: str) -> None:
    """Beside executors, it still has those of its host, and with files all that it needs."""
    run = Run(cluster, targets, cluster.network.folder / f"zombie-{first}")
    try:
        run.start_driver(first)
        run.wait(lambda: all(map(run.written, run.places)), "an epoch of each stream")
        cut_off(run, first)
        former = run.replace_driver("b")
        run.wait(lambda: not run.behind(), "the end of all that was given", feeding=False)
        before = {mode: place.content() for mode, place in run.places.items()}
        heal(run, first)
        # It is given nothing new, so that nothing but its own epochs could change a target.
        run.wait(lambda: len(ends(former)) == len(run.places) or not former.running, "its end", feeding=False)
        why = ends(former)
        print(why)
        assert {mode: place.content() for mode, place in run.places.items()} == before
        assert {mode: figures[1:] for mode, figures in run.found().items()} == dict.fromkeys(run.places, (0, 0))
        assert any(name in text for text in why.values() for name in FENCED), why
    finally:
        run.close()
