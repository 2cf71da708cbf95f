"""Facts about `OpenSearchSink` for the documentation."""

from __future__ import annotations

from outfall.opensearch.sink import OpenSearchSink
from outfall.sink_facts import SinkFacts

_URL = "https://search.example.com:9200"

FACTS = SinkFacts(
    title="OpenSearch, Elasticsearch",
    destination="documents of OpenSearch or Elasticsearch",
    sinks={
        "": OpenSearchSink(_URL, index="rows", key_columns=["id"]),
        "for data streams": OpenSearchSink(_URL, index="rows", data_stream=True),
        "with `versions=False`": OpenSearchSink(_URL, index="rows", key_columns=["id"], versions=False),
        'with `deletes="remove"`': OpenSearchSink(
            _URL, index="rows", key_columns=["id"], delete_marker="deleted", deletes="remove"
        ),
    },
)
