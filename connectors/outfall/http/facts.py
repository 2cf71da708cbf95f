"""Facts about `HttpSink` for the documentation."""

from __future__ import annotations

from outfall.http.sink import HttpSink
from outfall.sink_facts import SinkFacts

_URL = "https://api.example.com/rows"

FACTS = SinkFacts(
    title="HTTP",
    destination="requests to a web service",
    sinks={
        "": HttpSink(_URL),
        "with idempotency keys": HttpSink(_URL, body="record", idempotency="row", key_column="id"),
        "with item ids": HttpSink(_URL, idempotency="item", key_column="id"),
        'with `idempotency="content"`': HttpSink(_URL, body="record", idempotency="content"),
        "with `across_epochs`": HttpSink(_URL, across_epochs=True),
    },
)
