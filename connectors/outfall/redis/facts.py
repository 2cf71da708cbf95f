"""Facts about `RedisSink` for the documentation."""

from __future__ import annotations

from outfall.redis.sink import RedisSink
from outfall.sink_facts import SinkFacts

_TARGET = ("rediss://cache.example.com", "row:{id}")

FACTS = SinkFacts(
    title="Redis",
    destination="hashes and strings in Redis or Valkey",
    sinks={
        "": RedisSink(*_TARGET),
        "with `versions=False`": RedisSink(*_TARGET, versions=False),
    },
)
