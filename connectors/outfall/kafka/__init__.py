"""Apache Kafka: rows as records, and recovery data, on one client.

```
sink, options       the public class and its options; the sink holds one delivery mode
delivery            the common part of the modes: options, columns, the topic; the mode without parts
stream              the writer of the mode without parts: one task's rows
parts/              the mode with parts: a transaction per part, the ledger, and the driver's side
records             rows as records
producer/           producers of plain rows and of transactions, and those that a process caches
client, topics      librdkafka's clients, retries and errors; queries and creation of topics
topic_generation    which lives of topics with change events are read
partition           the only partition of a topic: creation, checks, reads and writes
recovery/           the log of a step in two topics
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("kafka", "confluent_kafka")

from outfall.kafka.options import KafkaOptions
from outfall.kafka.recovery.config import KafkaRecoveryConfig, recovery_from_url
from outfall.kafka.sink import KafkaSink
from outfall.kafka.topic_generation import TopicGeneration, TopicGenerations

__all__ = [
    "KafkaRecoveryConfig",
    "KafkaSink",
    "TopicGeneration",
    "TopicGenerations",
    "recovery_from_url",
    "sink_from_options",
]


def sink_from_options(options: Mapping[str, str]) -> KafkaSink:
    """Create a sink from Spark options (`brokers`, `topic`, `value_format`, …; also spelled `valueFormat`).

    Raises `ConfigurationError`, which lists every unknown or wrong option.
    """
    return KafkaSink(**dict(parse_options(KafkaOptions, options)))
