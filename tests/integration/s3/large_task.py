"""One task in a process of its own: `python -m tests.integration.s3.large_task ADDRESS MB sink|empty` prints its peak.

The peak is that of its memory, in bytes; `empty` makes the same batches and writes them nowhere.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.s3 import S3Sink
from tests.integration.s3.support import Session

BATCH_MB = 4


def run(address: str, megabytes: int, writes: bool) -> int:
    sink = S3Sink(
        "bucket", "out", endpoint_url=address, path_style=True, session_factory=Session("key", "secret"), format="text"
    )
    context = WriterInitContext("sink", "0" * 16, generation=1, epoch=0, part=None, attempt=0)
    partition: Any = sink.bind(context).build("sink", 0, 1)
    for number in range(megabytes // BATCH_MB):
        batch = pa.record_batch({"value": [f"{number:0999d}"] * (1000 * BATCH_MB)})
        if writes:
            partition.write_record_batch(batch)
    handed_over = partition.prepare_commit() if writes else []
    partition.close()
    assert sum(each.size for each in handed_over) == (megabytes * 1_000_000 if writes else 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sink"))
