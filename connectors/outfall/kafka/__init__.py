"""Recovery data in Kafka, right without the broker's transactions. See docs/recovery-kafka.md."""

from outfall.kafka.recovery_config import KafkaRecoveryConfig, recovery_from_url

__all__ = ["KafkaRecoveryConfig", "recovery_from_url"]
