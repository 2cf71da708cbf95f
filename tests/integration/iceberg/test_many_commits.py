"""T5: a commit takes no longer after hundreds of epochs, as long as snapshots expire."""

from __future__ import annotations

import time
from statistics import median

import pyarrow as pa
import pytest

from outfall.trace_points import listen
from tests.integration.support.batch_driver import batch
from tests.integration.support.iceberg_epochs import Lake

EPOCHS = 500


@pytest.mark.long
def test_the_last_hundred_of_500_commits_take_at_most_twice_the_first_hundred(lake: Lake) -> None:
    """In seconds of the processor, which other work on the machine does not change."""
    lake.create(pa.schema({"id": pa.int64(), "name": pa.string()}))
    driver = lake.driver(max_snapshot_age="1 second")
    begun = [0.0]
    taken: list[float] = []
    whole: list[float] = []

    def note(step: str) -> None:
        if step == "before commit":
            begun[0] = time.process_time()
        elif step == "after commit":
            taken.append(time.process_time() - begun[0])

    stop = listen(note)
    try:
        for epoch in range(EPOCHS):
            started = time.process_time()
            driver.write(epoch, batch(id=pa.array([epoch]), name=pa.array(["x"])))
            whole.append(time.process_time() - started)
    finally:
        stop()
    assert len(taken) == EPOCHS
    first, last = median(taken[:100]), median(taken[-100:])
    print(f"\nfirst {first:.4f}, last {last:.4f} s; of an epoch {median(whole[-100:]):.4f} s")
    assert last < 2 * first
    assert len(lake.files.history()) < 100
    assert lake.rows("id") == sorted(range(EPOCHS), key=repr)
