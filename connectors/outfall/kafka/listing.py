"""Which steps share a progress topic."""

from __future__ import annotations

from contextlib import closing

from outfall.kafka.partition import Partition
from outfall.recovery.log import is_step_id


def steps_in(progress: Partition) -> list[str]:
    """Return the ids of the steps that have a record without a tombstone, sorted. Reads the whole topic.

    Raises:
        TransientError: the broker did not give it in time.
    """
    live: set[str] = set()
    position, end = progress.bounds()
    while position < end:
        with closing(progress.records(position, end)) as records:
            for record in records:
                if record.value is None:
                    live.discard(record.key)
                else:
                    live.add(record.key)
        # What was buried while it was read, and compacted away, has a successor behind the end.
        position, (_, end) = end, progress.bounds()
    return sorted({step for step in (key.split("/")[0] for key in live) if is_step_id(step)})
