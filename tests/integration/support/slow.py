"""Functions for Spark's workers that take their time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on in small batches, a hundred rows a second."""
    for batch in batches:
        for start in range(0, batch.num_rows, 10):
            time.sleep(0.1)
            yield batch.slice(start, 10)
