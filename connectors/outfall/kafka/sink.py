"""`KafkaSink`: writes rows as records to topics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from outfall.errors import ConfigurationError
from outfall.kafka.delivery import KafkaStream
from outfall.kafka.options import KafkaOptions
from outfall.options import arguments_for, make_options, names_arguments
from outfall.row_logging import LogRows
from outfall.sinks import Sink
from outfall.wrappers import WithDeadLetters


class KafkaSink(WithDeadLetters):
    """Writes rows as records to one topic, or to the topic of each row.

    Item type: rows (dicts or Arrow batches) with the columns of Spark's own Kafka sink: `value`, and optionally `key`,
    `topic`, `partition`, `headers` and `timestamp`. With `value_format` any columns.

    What must exist: the topic, unless `create_topic="if_missing"`, and permission to write to it.

    Unit of parallelism: each Spark task sends its rows through a producer that its process caches between epochs. With
    `parts` each part, in its own transaction.

    Guarantee: at least once. Rows of a failed attempt at an epoch are duplicated. With `parts` exactly once for
    `read_committed` readers, under the conditions of `requires()`. A record that the brokers permanently reject fails
    the query, or without `parts` can become a dead letter.

    Args:
        brokers: `host:port`, several separated by commas. See `KafkaOptions`, also for the other arguments.
        topic: the topic of all records; without it each row has its own topic.
        dead_letter: a sink for rejected records; see `outfall.wrappers.DeadLetteringSink`. Python API only, and only
            without `parts`.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected records.
    """

    @names_arguments
    def __init__(
        self,
        brokers: str,
        topic: str | None = None,
        *,
        parts: int | None = None,
        value_format: Literal["json", "csv", "text", "avro", "json_schema", "protobuf"] | None = None,
        key_column: str | None = None,
        key_format: Literal["avro", "json_schema", "protobuf"] | None = None,
        topic_column: str | None = None,
        schema_registry: str | Mapping[str, Any] | None = None,
        value_schema: str | int = "latest",
        key_schema: str | int = "latest",
        register_schemas: bool = False,
        subject_strategy: Literal["topic", "record", "topic_record"] = "topic",
        value_record: str | None = None,
        key_record: str | None = None,
        create_topic: Literal["never", "if_missing"] = "never",
        partitions: int | None = None,
        replication_factor: int | None = None,
        client_options: Mapping[str, Any] | None = None,
        delivery_timeout: timedelta | float | str = 120,
        transaction_timeout: timedelta | float | str = 600,
        transactional_id_prefix: str = "outfall",
        reuse_producers: bool = True,
        ledger_topic: str | None = None,
        on_existing: Literal["check", "resume"] = "check",
        max_dead_letters: int = 1000,
        log_rows: LogRows = "keys",
        dead_letter: Any = None,
    ) -> None:
        given = arguments_for(KafkaOptions, locals())
        options = make_options(KafkaOptions, given | {"client_options": client_options or {}})
        if options.parts is not None and dead_letter is not None:
            raise ConfigurationError(
                "dead_letter and parts exclude each other",
                why="the transaction of a part commits all its records or none",
                do="omit one of them",
            )
        self.options = options
        super().__init__(_worker(options), dead_letter)

    def __repr__(self) -> str:
        return f"KafkaSink(topic={self.options.topic!r}, brokers={self.options.brokers!r})"


def _worker(options: KafkaOptions) -> Sink[Any]:
    """Choose the delivery mode."""
    if options.parts is None:
        return KafkaStream(options)
    # Imported here: these modules import the client, which users of this package may not have installed.
    from outfall.kafka.parts.brokers import connect
    from outfall.kafka.parts.delivery import KafkaPartDelivery

    return KafkaPartDelivery(options, connect)
