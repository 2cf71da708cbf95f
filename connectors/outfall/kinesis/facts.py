"""Facts about `KinesisSink` and `FirehoseSink` for the documentation."""

from __future__ import annotations

from outfall.kinesis.firehose import FirehoseSink
from outfall.kinesis.stream import KinesisSink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="Kinesis, Firehose",
    destination="records in Kinesis streams and Firehose",
    sinks={
        "": KinesisSink("rows"),
        "into Firehose": FirehoseSink("rows"),
        "with `across_epochs`": KinesisSink("rows", across_epochs=True),
    },
)
