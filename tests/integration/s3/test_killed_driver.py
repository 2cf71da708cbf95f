"""The driver is killed (-9) while it streams real flights into a bucket, and started again until the stream ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outfall.s3 import committed_keys
from tests.integration.s3.support import Target
from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import FORMAT_API, KILLS, make_job
from tests.integration.support.s3 import SeaweedFS

pytestmark = [pytest.mark.spark, pytest.mark.faults]

STEPS = (
    "after BEGIN", "s3: opening", "s3: sending part", "s3: part under way", "s3: object ended", "s3: staged",
    "before PREPARED", "after COMMITTING", "s3: record advanced", "s3: completing", "s3: completed",
    "s3: manifest written", "before COMPLETED", "after clean-up",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("api", ["objects", pytest.param("options", marks=FORMAT_API)])
def test_the_bucket_holds_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, seaweed: SeaweedFS, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(seaweed.s3)
    for name, value in seaweed.s3.environment.items():
        monkeypatch.setenv(name, value)
    # Directories by carrier are small objects, and half of them are handed over with their bytes.
    options: dict[str, Any] = {"path": target.url, "partition_by": "carrier", "inline_bytes": "8 KiB"}
    job, rows = make_job(tmp_path, "uploads", api, s3=json.dumps(options), steps=STEPS)
    job.run_all()
    found = Counter(
        tuple((row | {"carrier": key.partition("/")[0].removeprefix("carrier=")}).get(name) for name in COLUMNS)
        for key, body in target.data().items()
        for row in map(json.loads, body.splitlines())
    )
    wanted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert found - wanted == Counter()
    assert wanted - found == Counter()
    assert target.uploads() == []
    keys = [key.removeprefix(target.root) for key in committed_keys(target.url, client=target.client)]
    assert sorted(keys) == sorted(target.data())
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3
