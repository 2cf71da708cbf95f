"""Facts about `KafkaSink` for the documentation."""

from __future__ import annotations

from outfall.kafka.sink import KafkaSink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="Kafka",
    destination="records in Kafka topics; with `parts=N` in transactions, for `read_committed` readers",
    sinks={"": KafkaSink("broker:9092", "rows"), "with `parts=N`": KafkaSink("broker:9092", "rows", parts=4)},
)
