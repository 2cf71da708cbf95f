"""Facts about `DeltaSink` for the documentation."""

from __future__ import annotations

from outfall.delta.sink import DeltaSink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="Delta",
    destination="one version of a Delta table per epoch, without JARs",
    sinks={
        "": DeltaSink("/data/rows"),
        'with `write_mode="upsert"`': DeltaSink("/data/rows", write_mode="upsert", key_columns=["id"]),
        'with `writer="spark"`': DeltaSink("/data/rows", writer="spark"),
    },
)
