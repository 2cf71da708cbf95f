"""The driver is killed (-9) while its tasks publish flights under offsets, and started again until the stream ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.postgres.support import Target
from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import KILLS, make_job
from tests.integration.support.sql import FLIGHTS

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]

STEPS = (
    "after BEGIN", "sql: opening", "sql: copying", "sql: publishing", "sql: before COMMIT",
    "sql: after COMMIT", "task: after flush", "after collect", "before PREPARED", "after PREPARED",
    "before COMPLETED",
)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "key"),
    # Parts need no key, and without one a flight that came twice would be there twice.
    [("parts", ""), ("source offsets", ", PRIMARY KEY (id)")],
)
def test_the_table_holds_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, dsn: str, mode: str, key: str
) -> None:
    target = Target(dsn, f"CREATE TABLE t ({FLIGHTS}{key})")
    job, rows = make_job(tmp_path, mode, "objects", dsn=dsn, steps=STEPS)
    job.run_all()
    found = Counter(target.run(f"SELECT {', '.join(COLUMNS)} FROM t"))
    wanted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert found - wanted == Counter()
    assert wanted - found == Counter()
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3
