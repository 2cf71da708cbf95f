"""Facts about the sinks around other sinks for the documentation."""

from __future__ import annotations

from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="Fan-out, batching, deduplication",
    destination="several sinks at once, larger batches, rows that a source repeats, dead letters in any sink",
)
