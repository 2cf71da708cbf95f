"""T5: a commit takes as long after 500 epochs as after a hundred, in a table whose files somebody compacts."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest

from outfall.delta import DeltaSink
from outfall.delta.table import LoadedDelta
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore

pytestmark = pytest.mark.long


def test_loading_and_committing_stays_flat(shore: Shore, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []

    def timed(method: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **more)
            finally:
                spent[-1] += time.perf_counter() - started

        return call

    monkeypatch.setattr(DeltaSink, "load", timed(DeltaSink.load))
    monkeypatch.setattr(LoadedDelta, "commit", timed(LoadedDelta.commit))
    driver = shore.driver(create_table="if_missing")
    for epoch in range(500):
        spent.append(0.0)
        driver.write(epoch, batch(id=[2 * epoch]), batch(id=[2 * epoch + 1]))
        if epoch % 100 == 99:
            shore.table.optimize.compact()
    first, last = median(spent[:100]), median(spent[-100:])
    assert last < 2 * first, f"{first * 1000:.0f} ms became {last * 1000:.0f} ms"
    assert shore.rows("id") == sorted(range(1000), key=repr)
    assert len(shore.newest.transactions) == 6
