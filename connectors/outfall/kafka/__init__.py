"""Apache Kafka: rows as records, and recovery data, on one client.

```
options, client     what may be given to librdkafka; its clients, retries and errors
partition           a topic's only partition: made, checked, read and written
recovery/           the log of a step in two topics
```
"""

from outfall.kafka.recovery.config import KafkaRecoveryConfig, recovery_from_url

__all__ = ["KafkaRecoveryConfig", "recovery_from_url"]
