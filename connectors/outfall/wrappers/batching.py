"""`BatchingSink`: larger batches for a sink."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Never

from outfall.capability_checks import check_sink
from outfall.options import make_options, parse_options
from outfall.wrappers.batch_buffer import BatchingOptions, BatchLimits
from outfall.wrappers.batched import Batching, batched
from outfall.wrappers.cross_epoch_batching import HoldingBatchingSink


class BatchingSink:
    """Gives a sink its rows in batches of a size.

    Item type: what the sink takes. A sink that takes Arrow batches gets them sliced and joined, never as rows.

    What must exist: what the sink needs.

    Unit of parallelism: that of the sink. Each of its partitions has batches of its own.

    Guarantee: that of the sink.

    Within an epoch, the default, the last batch of each partition may be smaller. The result is the given sink in all
    but this, with each of its capabilities and its own recovery data. With `across_epochs=True` rows wait in the
    recovery data until there are enough of them, they are old enough, a batch job ends or `outfall.spark.drain` is
    called; limits are looked at while epochs run. A sink without parts then needs `workers=`. Turning it on or off
    needs a new checkpoint.

    Args:
        sink: any sink.
        batch_size: rows in a batch.
        flush_interval: how old the oldest row gets before its batch is written: timedelta, seconds, or text.
        max_bytes: bytes in a batch, as Arrow holds the rows: a number, or text such as `"8 MiB"`.
        across_epochs: whether a batch waits for the rows of later epochs.

    Raises:
        ConfigurationError: naming every option that is wrong.
        CapabilityError: the sink's capabilities do not go together.
    """

    def __new__(
        cls,
        sink: Any,
        batch_size: int = 1000,
        flush_interval: timedelta | float | str = timedelta(seconds=30),
        max_bytes: int | str | None = None,
        across_epochs: bool = False,
        **unknown: Never,
    ) -> Any:
        given = {
            "batch_size": batch_size,
            "flush_interval": flush_interval,
            "max_bytes": max_bytes,
            "across_epochs": across_epochs,
        }
        return with_batches(sink, Batching(make_options(BatchingOptions, given | unknown)))


def with_batches(sink: Any, batching: Batching) -> Any:
    """Return the sink with batches; a clock of one's own goes into `batching`."""
    check_sink(sink)
    return HoldingBatchingSink(sink, batching) if batching.options.across_epochs else batched(sink, batching)


def batching_from_options(sink: Any, options: Mapping[str, str]) -> Any:
    """Give a sink batches by Spark options (`batch_size`, `flush_interval`, `max_bytes`; also spelled `batchSize`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    limits = parse_options(BatchLimits, options)
    return with_batches(sink, Batching(BatchingOptions(**limits.model_dump())))
