"""`KafkaSink`: rows as records in topics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Literal

from outfall.errors import ConfigurationError, missing_extra
from outfall.kafka.delivery import KafkaStream
from outfall.kafka.options import KafkaOptions
from outfall.options import make_options, names_arguments
from outfall.sinks import Sink
from outfall.wrappers import WithDeadLetters


class KafkaSink(WithDeadLetters):
    """Writes rows as records into one topic, or into the topics that they name.

    Item type: rows (dicts or Arrow batches), with the columns of Spark's own Kafka sink: `value`, and where they are
    wanted `key`, `topic`, `partition`, `headers` and `timestamp`. With `value_format` any columns.

    What must exist: the topic, unless `create_topic="if_missing"`, and the right to write to it.

    Unit of parallelism: each Spark task sends its rows, by a producer that its process keeps between epochs; with
    `parts` each part, in a transaction of its own.

    Guarantee: at least once. Rows that an epoch has written before it failed are in the topic twice. With `parts`
    exactly once for readers of what is committed, as `requires()` says. A record that the brokers refuse for good stops
    the query, or without `parts` goes to the dead letters.

    Args:
        brokers: `host:port`, several with commas between them. See `KafkaOptions`, as for all arguments.
        topic: where records go; without it rows name their topics.
        dead_letter: a sink for the records that are refused; see `outfall.wrappers.DeadLetteringSink`. Objects only,
            and only without `parts`.

    Raises:
        ConfigurationError: naming every option that is wrong.
        CapabilityError: `dead_letter` cannot take what this sink refuses.
        ImportError: confluent-kafka is not installed; the text says what to do.
    """

    @names_arguments
    def __init__(
        self,
        brokers: str,
        topic: str | None = None,
        *,
        parts: int | None = None,
        value_format: Literal["json", "csv", "text"] | None = None,
        key_column: str | None = None,
        topic_column: str | None = None,
        create_topic: Literal["never", "if_missing"] = "never",
        partitions: int | None = None,
        replication_factor: int | None = None,
        client_options: Mapping[str, Any] | None = None,
        delivery_timeout: timedelta | float | str = 120,
        transaction_timeout: timedelta | float | str = 600,
        transactional_id_prefix: str = "outfall",
        ledger_topic: str | None = None,
        on_existing: Literal["check", "resume"] = "check",
        max_dead_letters: int = 1000,
        dead_letter: Any = None,
    ) -> None:
        if find_spec("confluent_kafka") is None:
            raise missing_extra("confluent-kafka", "kafka")
        given = {name: value for name, value in locals().items() if name in KafkaOptions.model_fields}
        options = make_options(KafkaOptions, given | {"client_options": client_options or {}})
        if options.parts is not None and dead_letter is not None:
            raise ConfigurationError(
                "dead_letter and parts exclude each other",
                why="a part's transaction commits all its records or none",
                do="leave one of them out",
            )
        self.options = options
        super().__init__(_worker(options), dead_letter)

    def __repr__(self) -> str:
        return f"KafkaSink(topic={self.options.topic!r}, brokers={self.options.brokers!r})"


def _worker(options: KafkaOptions) -> Sink[Any]:
    """Choose the way of delivering."""
    if options.parts is None:
        return KafkaStream(options)
    # Here and not above: these import the client, and whoever imports this package may not have it.
    from outfall.kafka.parts.brokers import connect
    from outfall.kafka.parts.delivery import KafkaPartDelivery

    return KafkaPartDelivery(options, connect)
