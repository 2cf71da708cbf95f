"""Facts about `DynamoDBSink` for the documentation."""

from __future__ import annotations

from outfall.dynamodb.sink import DynamoDBSink
from outfall.sink_facts import SinkFacts

FACTS = SinkFacts(
    title="DynamoDB",
    destination="items of a DynamoDB table",
    sinks={
        "": DynamoDBSink("rows"),
        "with `versions=False`": DynamoDBSink("rows", versions=False),
        'with `deletes="remove"`': DynamoDBSink("rows", delete_marker="deleted", deletes="remove"),
    },
)
