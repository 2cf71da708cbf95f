"""Facts about `S3Sink` for the documentation."""

from __future__ import annotations

from outfall.s3.sink import S3Sink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="S3",
    destination="objects in S3 and compatible stores: fewer requests and larger files than the file sink",
    sinks={
        "": S3Sink("bucket"),
        "with `roll_bytes`, `roll_interval` or `roll_rows`": S3Sink("bucket", roll_bytes="1 GiB"),
    },
)
