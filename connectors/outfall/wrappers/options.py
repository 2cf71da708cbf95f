"""The options of batching."""

from __future__ import annotations

from datetime import timedelta

from pydantic import ByteSize, Field

from outfall.durations import Duration
from outfall.options import SinkOptions


class BatchLimits(SinkOptions):
    """When a batch is complete: at the first of the limits that is reached. What the options door takes."""

    batch_size: int = Field(default=1000, ge=1, description="Rows in a batch.")
    flush_interval: Duration = Field(
        default=timedelta(seconds=30), description="How old the oldest row of a batch gets before the batch is written."
    )
    max_bytes: ByteSize | None = Field(
        default=None, gt=0, description="Bytes in a batch, as Arrow holds the rows. A larger row is a batch of its own."
    )


class BatchingOptions(BatchLimits):
    """When a batch is complete, and whether it waits for later epochs."""

    across_epochs: bool = Field(
        default=False, description="Whether a batch that is not complete waits for the rows of later epochs."
    )
