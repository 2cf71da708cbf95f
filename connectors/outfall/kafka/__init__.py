"""Apache Kafka: rows as records, and recovery data, on one client.

```
sink, options       what a user writes; the sink holds one way of delivering
delivery            what the ways share: options, columns, the topic; the one without parts, at least once
stream              its writer: one task's rows
records, producer   rows as records; one producer, and those kept between epochs
client, topics      librdkafka's clients, retries and errors; topics asked for and made
idle                clients that are kept for who opens the same next
partition           a topic's only partition: made, checked, read and written
recovery/           the log of a step in two topics
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.kafka.options import KafkaOptions
from outfall.kafka.recovery.config import KafkaRecoveryConfig, recovery_from_url
from outfall.kafka.sink import KafkaSink
from outfall.options import parse_options

__all__ = ["KafkaRecoveryConfig", "KafkaSink", "recovery_from_url", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> KafkaSink:
    """Make a sink from Spark options (`brokers`, `topic`, `value_format`, …; also spelled `valueFormat`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    return KafkaSink(**dict(parse_options(KafkaOptions, options)))
