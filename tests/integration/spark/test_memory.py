"""A Python worker's memory does not grow with the rows of an epoch."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outfall.file import FileSink
from outfall.file.growing.part_files import FileState
from outfall.file.growing.partition import GrowingPart
from outfall.spark import write

pytestmark = pytest.mark.spark

MIB = 1 << 20


class MeasuredSink(FileSink):
    """Notes its worker's peak memory beside its directory when a part is built and when it is finished."""

    def build_part(self, step_id: str, for_part: str, resume_state: FileState | None) -> GrowingPart:
        growing: Any = self.delegate
        part: GrowingPart = growing.build_part(step_id, for_part, resume_state)
        finish = part.snapshot

        def measured() -> FileState:
            state = finish()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            Path(f"{self.options.path}.peak").write_text(str(peak))
            return state

        part.snapshot = measured  # type: ignore[method-assign]
        return part


@pytest.mark.long
def test_ten_million_rows_through_one_part_add_less_than_64_mib(spark: SparkSession, tmp_path: Path) -> None:
    peaks = []
    for rows in (100_000, 10_000_000):
        out = tmp_path / str(rows)
        result = write(spark.range(rows).selectExpr("id", "'abc' as text"), MeasuredSink(out, parts=1))
        assert result.counts["rows"] == rows
        peaks.append(int(Path(f"{out}.peak").read_text()))
    assert peaks[1] - peaks[0] < 64 * MIB
