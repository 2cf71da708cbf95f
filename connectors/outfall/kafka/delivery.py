"""The common part of all delivery modes: options, columns, and the topic, checked before an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    RowIdentity,
    SupportsDeadLetterSink,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    changed,
)
from outfall.contexts import WriterInitContext
from outfall.errors import ConfigurationError, TargetError, require_extra
from outfall.first_contact import one_attempt
from outfall.idle import Idle
from outfall.kafka.options import KafkaOptions, ProducerOptions
from outfall.kafka.records import KafkaRecordMaker
from outfall.schema_registry.subjects import ROLES
from outfall.sinks import DynamicSink, Sink

if TYPE_CHECKING:
    from outfall.kafka.client import KafkaClients
    from outfall.kafka.stream import KafkaStreamPartition
    from outfall.schema_registry.writing import SchemaWriters

_BATCH = 1_000_000
"""Maximum bytes of one batch in librdkafka, unless `batch.size` sets another value."""
_MOST_CLIENTS = 8

CLIENTS: Idle[KafkaClients] = Idle(_MOST_CLIENTS)
"""The clients of this process for queries on the driver."""


class KafkaDelivery(Sink[Any], SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """One delivery mode, held by a `KafkaSink`."""

    shown_as = "KafkaSink"

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.context: WriterInitContext | None = None
        self.writers = _writers(options)
        """Of the parts of records with schemas of a registry. Tasks get the schemas that the driver has looked up."""
        self._largest: int | None = None
        """The topic's maximum batch size in bytes, after the driver has queried it. Tasks get it from the driver."""
        self._tried = False
        """Whether the driver has created a producer with the options."""
        self._unchecked: pa.Schema | None = None
        """The columns whose schemas the registry has not returned yet."""
        self._looked = False
        """Whether the driver has checked the topic, beyond its existence."""

    def __repr__(self) -> str:
        return f"KafkaSink(topic={self.options.topic!r}, brokers={self.options.brokers!r})"

    def kind(self) -> str:
        return "kafka"

    def target(self) -> str:
        # Without the brokers: they may move, and the recovery data with them.
        return f"kafka:{self.options.topic or '*'}"

    def row_identity(self) -> RowIdentity | None:
        key = self.options.key_column
        return None if key is None else RowIdentity("append by key_column", (key,))

    def place(self) -> str:
        return f"{self.options.brokers} {self.options.topic or '*'}"

    def bind(self, context: WriterInitContext) -> Self:
        return changed(self, context=context)

    def requires(self) -> Sequence[str]:
        return ("topics with min.insync.replicas of 2 or more, and no unclean leader election",)

    def replaces_rows(self) -> bool:
        # The newest record of a key is the last one, for compaction and for readers of a table.
        return self.options.value_format is None or self.options.key_column is not None

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject columns that cannot become records. The registry is waited for only by `check_target`."""
        self._unchecked = schema
        with one_attempt():
            self.maker().check_schema(schema)
            self._unchecked = None

    def maker(self) -> KafkaRecordMaker:
        """Create a converter of rows to records, for one task."""
        return KafkaRecordMaker(self.options, self.writers)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        self.check_topic()
        return {}

    def open_target(self, context: TargetContext[Any]) -> None:
        self.make_topic()

    def check_topic(self) -> None:
        """Reject a topic that is missing and must not be created, or that this user may not write to.

        And columns that do not fit the schemas of the registry, if it has not responded until now.
        """
        self._check_options()
        if self._unchecked is not None:
            self.maker().check_schema(self._unchecked)
            self._unchecked = None
        topic = self.options.topic
        if topic is not None:
            with self.clients() as clients:
                if self._partitions(clients, topic) and not self._looked:
                    self._look(clients, topic)

    def make_topic(self) -> None:
        """Create the topic if it is missing."""
        from outfall.kafka.topics import BROKERS_CHOICE, Topics

        options = self.options
        if options.topic is None or options.create_topic == "never":
            return
        with self.clients() as clients:
            topics = Topics(clients)
            if topics.partitions(options.topic) is None:
                partitions, replicas = options.partitions, options.replication_factor
                how = f"(partitions={partitions}, replication_factor={replicas})"
                topics.make(options.topic, partitions or BROKERS_CHOICE, replicas or BROKERS_CHOICE, {}, how)
                self._look(clients, options.topic)

    def check_connection(self) -> Sequence[str]:
        """Connect, and check the topic, the permission to write to it, and the schema registry."""
        self._check_options()
        found = [*self._check_brokers()]
        if self.options.schema_registry is not None:
            from outfall.schema_registry.client import check_registry

            found.append(check_registry(self.options.schema_registry))
        return found

    def _check_brokers(self) -> Sequence[str]:
        topic = self.options.topic
        with self.clients() as clients:
            if topic is None:
                clients.ask("querying the cluster", lambda seconds: clients.consumer().list_topics(timeout=seconds))
                return ["the brokers respond; rows have their own topics, which were not checked"]
            count = self._partitions(clients, topic)
            if count is None:
                return [f"the brokers respond; the topic {topic} is missing and will be created"]
            written = self._look(clients, topic)
        rights = (
            "this user may write to it" if written else "the brokers do not report whether this user may write to it"
        )
        return [f"the topic {topic} exists, with {count} partitions", rights]

    @contextmanager
    def clients(self) -> Iterator[KafkaClients]:
        """Return clients for queries, connected if this process has used them before."""
        # Imported here: this package also contains the recovery store, and its users may not have the client installed.
        from outfall.kafka.client import KafkaClients

        options = self.options
        given = options.client.reaching()
        key, secrets = (options.brokers, given, options.seconds), given.resolved()
        clients = CLIENTS.take(key, secrets) or KafkaClients(
            options.brokers, given, options.seconds, role="Kafka", then=NEXT_RUN
        )
        try:
            yield clients
        except BaseException:
            clients.shut()
            raise
        CLIENTS.keep(key, secrets, clients)

    def producer_options(self) -> ProducerOptions:
        """Return librdkafka's properties for writing, with batches no larger than the topic's limit."""
        given = self.options.client
        size = given.get("batch.size", f"{_BATCH}")
        if self._largest is None or not size.isdecimal() or self._largest >= int(size):
            return given
        return given.changed({"batch.size": self._largest})

    def writer(self) -> WriterInitContext:
        """Return the context of the writer. Raises `ConfigurationError` if the sink has none."""
        if self.context is None:
            raise ConfigurationError(
                "KafkaSink has no writer context", do="run it with outfall, which calls bind() first"
            )
        return self.context

    def _check_options(self) -> None:
        """Reject properties that librdkafka does not accept: it reports them when it creates a producer."""
        from outfall.kafka.producer.rows import RowProducer

        if not self._tried:
            RowProducer(self.options.brokers, self.producer_options(), self.options.seconds).open().shut()
            self._tried = True

    def _partitions(self, clients: KafkaClients, topic: str) -> int | None:
        """The number of partitions of the topic; `None` if it is missing and will be created."""
        from outfall.kafka.topics import Topics

        count = Topics(clients).partitions(topic)
        if count is None and self.options.create_topic == "never":
            raise TargetError(
                f"the topic {topic} does not exist at {clients.where}",
                do='create it, correct the name, or set create_topic="if_missing"',
            )
        return count

    def _look(self, clients: KafkaClients, topic: str) -> bool | None:
        """Query the maximum batch size, and whether this user may write; `None` if the brokers do not report it."""
        from outfall.kafka.topics import Topics

        topics = Topics(clients)
        may = topics.may_write(topic)
        if may is False:
            raise ConfigurationError(
                f"this user may not write to the topic {topic} at {clients.where}",
                do="grant the user DESCRIBE and WRITE on the topic, or set another user in client_options",
            )
        self._largest = topics.largest_batch(topic)
        self._looked = True
        clients.drop_admin()
        return may


class KafkaStream(KafkaDelivery, DynamicSink[Any], SupportsDeadLetterSink):
    """Without `parts`: any number of tasks send their rows concurrently, at least once."""

    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def max_dead_letters(self) -> int:
        return self.options.max_dead_letters

    def owns_target(self) -> bool:
        # Others may write to the topic too, so an existing topic is not a conflict.
        return False

    def build(self, step_id: str, worker_index: int, worker_count: int) -> KafkaStreamPartition:
        from outfall.kafka.stream import KafkaStreamPartition

        return KafkaStreamPartition(self)


NEXT_RUN = "the next run repeats the epoch"


def _writers(options: KafkaOptions) -> SchemaWriters:
    """Return what encodes values and keys with schemas of a registry."""
    given = {role: options.schema_settings(role) for role in ROLES}
    if not any(given.values()):
        return {}
    # Imported here: most sinks need no registry, and executors load the sink in each new worker.
    require_extra("kafka", "fastavro", "urllib3")
    from outfall.schema_registry.writing import SchemaWriter

    return {role: SchemaWriter(settings) for role, settings in given.items() if settings is not None}
