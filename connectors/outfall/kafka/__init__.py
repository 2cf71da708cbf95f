"""Recovery data in Kafka, right without the broker's transactions. See docs/recovery-kafka.md.

```
options, client     what may be given to librdkafka; its clients, retries and errors
partition           a topic's only partition: made, checked, read and written
recovery_config     where the store is, and its logs between two uses
recovery_log        the log: appends by writing and reading back; large states
recovery_progress   the topic of entries, read to its end, and which records count
recovery_keys       the keys of records
```
"""

from outfall.kafka.recovery_config import KafkaRecoveryConfig, recovery_from_url

__all__ = ["KafkaRecoveryConfig", "recovery_from_url"]
