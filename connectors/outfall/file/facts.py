"""Facts about `FileSink` for the documentation."""

from __future__ import annotations

from outfall.file.sink import FileSink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="Files",
    destination="files on a shared disk, in HDFS or in an object store",
    sinks={
        "": FileSink("/data/rows"),
        "with `parts=N`": FileSink("/data/rows", parts=4),
        'with `writer="spark"`': FileSink("/data/rows", format="parquet", writer="spark"),
    },
)
