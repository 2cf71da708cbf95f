"""Facts about `IcebergSink` for the documentation."""

from __future__ import annotations

from outfall.iceberg.sink import IcebergSink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="Iceberg",
    destination="one snapshot of an Iceberg table per epoch, without JARs",
    sinks={
        "": IcebergSink("analytics.rows"),
        'with `write_mode="upsert"`': IcebergSink("analytics.rows", write_mode="upsert", key_columns=["id"]),
        'with `writer="spark"`': IcebergSink("analytics.rows", writer="spark"),
    },
)
