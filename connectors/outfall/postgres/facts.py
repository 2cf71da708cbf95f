"""Facts about `PostgresSink` for the documentation."""

from __future__ import annotations

from outfall.postgres.sink import PostgresSink
from outfall.sink_facts import SinkFacts

_TABLE = ("postgresql://app@db/warehouse", "rows")

FACTS = SinkFacts(
    title="PostgreSQL",
    destination="rows of a PostgreSQL table",
    sinks={
        "": PostgresSink(*_TABLE),
        'with `write_mode="upsert"`': PostgresSink(*_TABLE, write_mode="upsert", key_columns=["id"]),
        "with `parts=N`": PostgresSink(*_TABLE, parts=4),
        "with `offset_columns`": PostgresSink(*_TABLE, offset_columns=["partition", "offset"]),
        "with `allow_unlogged`": PostgresSink(*_TABLE, allow_unlogged=True),
    },
)
