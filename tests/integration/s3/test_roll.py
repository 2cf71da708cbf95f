"""Large objects from small epochs, in front of real servers, which copy the parts themselves."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.s3.support import Target

MIB = 1 << 20


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    return str(tmp_path / "recovery")


def driver(target: Target, recovery: str, **options: Any) -> LocalDriver:
    given = {"part_bytes": "5 MiB", "inline_bytes": 0, "roll_bytes": "13 MiB"}
    return LocalDriver(target.sink(**(given | options)), recovery, options=EpochOptions(worker_count=1))


def pieces(target: Target) -> list[str]:
    return [key for key in target.objects() if key.startswith("_outfall/pieces/")]


def large(number: int, size: int) -> dict[str, Any]:
    return {"id": number, "text": chr(97 + number) * size}


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["s3: copying part#2", pytest.param("after COMPLETED", marks=pytest.mark.thorough)])
def test_an_object_is_composed_of_parts_that_the_server_copies(any_target: Target, recovery: str, step: str) -> None:
    epochs = [[large(0, 7 * MIB)], [large(1, 4 * MIB), {"id": 2}], [large(3, 2 * MIB), {"id": 4}]]
    driver(any_target, recovery).run_epoch(0, [epochs[0]])
    driver(any_target, recovery).run_epoch(1, [epochs[1]])
    assert any_target.data() == {}
    with crash_at(step) as seen:
        driver(any_target, recovery).run_epoch(2, [epochs[2]])
    assert seen[-1] == step.partition("#")[0]
    driver(any_target, recovery).run_epoch(2, [epochs[2]])
    driver(any_target, recovery).run_epoch(3, [[{"id": 5}]])
    assert len(any_target.data()) == 1
    driver(any_target, recovery).drain()
    found = {row["id"]: row.get("text", "") for row in any_target.rows()}
    assert found == {row["id"]: row.get("text", "") for epoch in epochs for row in epoch} | {5: ""}
    assert any_target.ids() == list(range(6))
    assert (pieces(any_target), any_target.uploads()) == ([], [])


@pytest.mark.thorough
def test_small_epochs_of_parquet_become_one_file(any_target: Target, recovery: str) -> None:
    options: dict[str, Any] = {"format": "parquet", "roll_rows": 40, "roll_bytes": None, "partition_by": "k"}
    for epoch in range(20):
        driver(any_target, recovery, **options).run_epoch(epoch, [[{"id": 2 * epoch + n, "k": "x"} for n in range(2)]])
    ((key, body),) = any_target.data().items()
    assert key.startswith("k=x/")
    assert pq.read_table(io.BytesIO(body)).column("id").to_pylist() == list(range(40))
    driver(any_target, recovery, **options).run_epoch(20, [[]])
    assert pieces(any_target) == []
