"""One task in a process of its own, which prints the peak of its memory in bytes.

`python -m tests.integration.s3.large_task ADDRESS MB sink|empty [OPTION=VALUE …]`: `empty` makes the same batches and
writes them nowhere; the options are the sink's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.s3 import S3Sink
from tests.integration.s3.support import Session

BATCH_MB = 4


def run(address: str, megabytes: int, writes: bool, options: Any) -> int:
    session = Session("key", "secret")
    sink = S3Sink(
        "bucket", "out", endpoint_url=address, path_style=True, session_factory=session, format="text", **options
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
    return peak()


def peak() -> int:
    """The most memory that this program had. `ru_maxrss` is no such number: it begins with that of who started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    given = dict(option.split("=", 1) for option in sys.argv[4:])
    print(run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sink", given))
