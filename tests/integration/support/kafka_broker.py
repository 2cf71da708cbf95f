"""A broker in memory that speaks Kafka's protocol over TCP: a model of one, and no proof of what a real one does.

It has what the log and the sink ask of a broker: metadata with topic ids and rights, topics with settings, idempotent
and transactional produce, fetch and offsets in both isolation levels, compaction on demand. The faults that a test may
order are those of `kafka_wire`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from tests.integration.support.kafka_batches import Batch, batches_in
from tests.integration.support.kafka_topics import INVALID_PRODUCER_EPOCH, ModelPartition, ModelTopic
from tests.integration.support.kafka_transactions import PRODUCER_FENCED, Transactions
from tests.integration.support.kafka_wire import Api, WireServer

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR = 0, 1, 2, 3, 10
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 19, 20, 22
ADD_PARTITIONS_TO_TXN, END_TXN, DESCRIBE_CONFIGS = 24, 26, 32

OUT_OF_RANGE, UNKNOWN_TOPIC, TOO_LARGE, NO_COORDINATOR, TOPIC_DENIED = 1, 3, 10, 15, 29
INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
TOPIC_EXISTS, BAD_REPLICATION, OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC_ID = 36, 38, 55, 100

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS_RIGHT, ALTER_CONFIGS = 3, 4, 5, 6, 7, 8, 10, 11
EVERYTHING = frozenset({READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS_RIGHT, ALTER_CONFIGS})
"""All operations on a topic, by Kafka's numbers."""

SETTINGS = {"cleanup.policy": "delete", "max.message.bytes": "1048588", "delete.retention.ms": "86400000"}
_EARLIEST, _TRANSACTION, _COMMITTED, _BROKER = -2, 1, 1, 4


class ModelBroker(WireServer):
    """Its `topics` and `transactions` may be looked into and changed at any time, under its `lock`."""

    apis = WireServer.apis | {
        PRODUCE: Api(ProduceRequest, ProduceResponse, 3, 7, "_produce"),
        FETCH: Api(FetchRequest, FetchResponse, 4, 11, "_fetch"),
        LIST_OFFSETS: Api(ListOffsetsRequest, ListOffsetsResponse, 1, 5, "_list_offsets"),
        METADATA: Api(MetadataRequest, MetadataResponse, 0, 12, "_metadata"),
        FIND_COORDINATOR: Api(FindCoordinatorRequest, FindCoordinatorResponse, 0, 2, "_find_coordinator"),
        CREATE_TOPICS: Api(CreateTopicsRequest, CreateTopicsResponse, 0, 4, "_create_topics"),
        DELETE_TOPICS: Api(DeleteTopicsRequest, DeleteTopicsResponse, 1, 5, "_delete_topics"),
        INIT_PRODUCER_ID: Api(InitProducerIdRequest, InitProducerIdResponse, 0, 4, "_init_producer_id"),
        ADD_PARTITIONS_TO_TXN: Api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 0, 3, "_add_partitions"),
        END_TXN: Api(EndTxnRequest, EndTxnResponse, 0, 3, "_end_txn"),
        DESCRIBE_CONFIGS: Api(DescribeConfigsRequest, DescribeConfigsResponse, 0, 1, "_describe_configs"),
    }

    def __init__(self) -> None:
        """Begin to serve on a free port."""
        self.topics: dict[str, ModelTopic] = {}
        self.transactions = Transactions(self.topics)
        self.advertised = 0
        """The port at which clients are told to find it, as that of a proxy; 0 for its own."""
        self.rights: dict[str, frozenset[int]] = {}
        """What the client may do with a topic, where that is not everything."""
        super().__init__()

    def compact(self, **how: Any) -> None:
        with self.lock:
            for topic in self.topics.values():
                topic.compact(**how)

    def expire(self, transactional_id: str | None = None) -> list[str]:
        """Abort what is open, or one id's, as if its timeout had passed, and fence its producer; return the ids."""
        with self.lock:
            return self.transactions.expire(transactional_id)

    def resolve(self) -> None:
        """Write the markers that are due where they come late."""
        with self.lock:
            self.transactions.resolve()

    def make_anew(self, name: str) -> None:
        """Delete a topic and make it again as it was made: empty, and with another id."""
        with self.lock:
            old = self.topics[name]
            self.topics[name] = ModelTopic(len(old.partitions), old.settings)

    def _may(self, name: str, operation: int) -> bool:
        return operation in self.rights.get(name, EVERYTHING)

    def _find(self, name: str, index: int, operation: int) -> tuple[ModelPartition | None, int]:
        """The partition, or the error that says why it cannot be had."""
        if not self._may(name, operation):
            return None, TOPIC_DENIED
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None, UNKNOWN_TOPIC
        return topic.partitions[index], 0

    def _metadata(self, request: Any, version: int) -> Any:
        make = MetadataResponse[version]
        rights = request.include_topic_authorized_operations
        topics = [self._described(make, name, found, rights, version) for name, found in self._wanted(request, version)]
        broker = make.MetadataResponseBroker(
            node_id=1, host="127.0.0.1", port=self.advertised or self.port, rack=None, version=version
        )
        return make(throttle_time_ms=0, brokers=[broker], cluster_id="model", controller_id=1, topics=topics)

    def _wanted(self, request: Any, version: int) -> Iterator[tuple[str | None, ModelTopic | None]]:
        if request.topics is None or (version == 0 and not request.topics):
            yield from [(name, topic) for name, topic in self.topics.items() if self._may(name, DESCRIBE)]
            return
        ids = {topic.id: name for name, topic in self.topics.items()}
        for wanted in request.topics:
            name = ids.get(wanted.topic_id) if wanted.name is None else wanted.name
            yield name, self.topics.get(name or "")

    def _described(self, make: Any, name: str | None, topic: ModelTopic | None, rights: bool, version: int) -> Any:
        error = self.next_error(METADATA)
        if name is not None and not self._may(name, DESCRIBE):
            error = TOPIC_DENIED
        elif topic is None:
            error = error or (UNKNOWN_TOPIC_ID if name is None else UNKNOWN_TOPIC)
        partitions = [
            make.MetadataResponseTopic.MetadataResponsePartition(
                error_code=0, partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1],
                offline_replicas=[], version=version,
            )
            for index in range(len(topic.partitions) if topic and not error else 0)
        ]  # fmt: skip
        return make.MetadataResponseTopic(
            error_code=error, name=name, topic_id=topic.id if topic and not error else uuid.UUID(int=0),
            is_internal=False, partitions=partitions, version=version,
            authorized_operations=self.rights.get(name or "", EVERYTHING) if rights and not error else None,
        )  # fmt: skip

    def _find_coordinator(self, request: Any, version: int) -> Any:
        of_transactions = request.key_type == _TRANSACTION
        error = self.next_error(FIND_COORDINATOR) or (
            self.transactions.denies(request.key) if of_transactions else NO_COORDINATOR
        )
        where = (-1, "", -1) if error else (1, "127.0.0.1", self.advertised or self.port)
        return FindCoordinatorResponse[version](
            throttle_time_ms=0, error_code=error, error_message="", node_id=where[0], host=where[1], port=where[2]
        )

    def _init_producer_id(self, request: Any, version: int) -> Any:
        producer, epoch = -1, -1
        error = self.next_error(INIT_PRODUCER_ID)
        if not error and request.transactional_id is None:
            producer, epoch = self.transactions.new_producer(), 0
        elif not error:
            error, producer, epoch = self.transactions.init(
                request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
            )
        return InitProducerIdResponse[version](
            throttle_time_ms=0, error_code=_spoken(error, version >= 4), producer_id=producer, producer_epoch=epoch
        )

    def _add_partitions(self, request: Any, version: int) -> Any:
        wanted = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
        errors = {each: self._find(*each, WRITE)[1] for each in wanted}
        common = self.next_error(ADD_PARTITIONS_TO_TXN)
        if not common and not any(errors.values()):
            common = self.transactions.add(
                request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch, wanted,
            )  # fmt: skip
        elif not common:
            errors = {each: error or OPERATION_NOT_ATTEMPTED for each, error in errors.items()}
        make = AddPartitionsToTxnResponse[version]
        results = [
            make.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    make.AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult(
                        partition_index=index, version=version,
                        partition_error_code=_spoken(common or errors[topic.name, index], version >= 2),
                    )
                    for index in topic.partitions
                ],
                version=version,
            )
            for topic in request.v3_and_below_topics
        ]  # fmt: skip
        return make(throttle_time_ms=0, results_by_topic_v3_and_below=results)

    def _end_txn(self, request: Any, version: int) -> Any:
        error = self.next_error(END_TXN) or self.transactions.end(
            request.transactional_id, request.producer_id, request.producer_epoch, commit=request.committed
        )
        return EndTxnResponse[version](throttle_time_ms=0, error_code=_spoken(error, version >= 2))

    def _produce(self, request: Any, version: int) -> Any:
        make = ProduceResponse[version]
        responses = []
        for data in request.topic_data:
            answers = []
            for part in data.partition_data:
                error, offset = self._produced(request.transactional_id, data.name, part)
                answers.append(
                    make.TopicProduceResponse.PartitionProduceResponse(
                        index=part.index, error_code=error, base_offset=offset, log_append_time_ms=-1,
                        log_start_offset=0, version=version,
                    )
                )  # fmt: skip
            responses.append(make.TopicProduceResponse(name=data.name, partition_responses=answers, version=version))
        return make(responses=responses, throttle_time_ms=0)

    def _produced(self, transactional_id: str | None, name: str, part: Any) -> tuple[int, int]:
        partition, error = self._find(name, part.index, WRITE)
        if partition is None or (error := self.next_error(PRODUCE)):
            return error, -1
        settings = SETTINGS | self.topics[name].settings
        first = -1
        for batch in batches_in(bytes(part.records)):
            if error := _invalid(batch, settings):
                return error, -1
            if batch.transactional:
                here = (name, part.index)
                if error := self.transactions.verify(transactional_id or "", batch.producer, batch.epoch, here):
                    return error, -1
            error, offset = partition.append(batch)
            if error:
                return error, -1
            first = offset if first < 0 else first
        return 0, first

    def delay(self, number: int, request: Any) -> float:
        """A fetch waits until there is something, or for as long as it says."""
        return 0 if number != FETCH or self._has_news(request) else request.max_wait_ms / 1000

    def _has_news(self, request: Any) -> bool:
        with self.lock:
            found = [
                (part.fetch_offset, self._find(wanted.topic, part.partition, READ)[0])
                for wanted in request.topics
                for part in wanted.partitions
            ]
            return any(
                partition is not None and offset < _end(partition, request.isolation_level)
                for offset, partition in found
            )

    def _fetch(self, request: Any, version: int) -> Any:
        make = FetchResponse[version]
        topics = []
        for wanted in request.topics:
            make_part = make.FetchableTopicResponse.PartitionData
            parts = [self._fetched(make_part, wanted.topic, part, request, version) for part in wanted.partitions]
            topics.append(make.FetchableTopicResponse(topic=wanted.topic, partitions=parts, version=version))
        return make(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)

    def _fetched(self, make: Any, name: str, part: Any, request: Any, version: int) -> Any:
        partition, error = self._find(name, part.partition, READ)
        if partition and not 0 <= part.fetch_offset <= partition.end:
            error = OUT_OF_RANGE
        error = error or self.next_error(FETCH)
        records, aborted = b"", None
        if partition and not error:
            end = _end(partition, request.isolation_level)
            records = partition.read(part.fetch_offset, part.partition_max_bytes, end)
            if request.isolation_level == _COMMITTED:
                aborted = [
                    make.AbortedTransaction(producer_id=each.producer, first_offset=each.first, version=version)
                    for each in partition.aborted_between(part.fetch_offset, end)
                ]
        return make(
            partition_index=part.partition, error_code=error, high_watermark=partition.end if partition else -1,
            last_stable_offset=partition.stable if partition else -1, log_start_offset=0, aborted_transactions=aborted,
            preferred_read_replica=-1, records=records, version=version,
        )  # fmt: skip

    def _list_offsets(self, request: Any, version: int) -> Any:
        make = ListOffsetsResponse[version]
        topics = []
        for wanted in request.topics:
            parts = []
            for part in wanted.partitions:
                partition, error = self._find(wanted.name, part.partition_index, DESCRIBE)
                end = _end(partition, request.isolation_level) if partition else -1
                parts.append(
                    make.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, error_code=error or self.next_error(LIST_OFFSETS),
                        timestamp=-1, offset=0 if part.timestamp == _EARLIEST else end, leader_epoch=0,
                        version=version,
                    )
                )  # fmt: skip
            topics.append(make.ListOffsetsTopicResponse(name=wanted.name, partitions=parts, version=version))
        return make(throttle_time_ms=0, topics=topics)

    def _create_topics(self, request: Any, version: int) -> Any:
        make = CreateTopicsResponse[version]
        results = []
        for new in request.topics:
            error = self.next_error(CREATE_TOPICS) or (TOPIC_EXISTS if new.name in self.topics else 0)
            error = error or (BAD_REPLICATION if new.replication_factor > 1 else 0)
            error = error or (0 if self._may(new.name, CREATE) else TOPIC_DENIED)
            if not error and not request.validate_only:
                settings = {setting.name: setting.value for setting in new.configs}
                self.topics[new.name] = ModelTopic(max(1, new.num_partitions), settings)
            results.append(
                make.CreatableTopicResult(name=new.name, error_code=error, error_message=None, version=version)
            )
        return make(throttle_time_ms=0, topics=results)

    def _delete_topics(self, request: Any, version: int) -> Any:
        make = DeleteTopicsResponse[version]
        results = []
        for name in request.topic_names:
            error = self.next_error(DELETE_TOPICS) or (0 if self._may(name, DELETE) else TOPIC_DENIED)
            error = error or (0 if name in self.topics else UNKNOWN_TOPIC)
            if not error:
                del self.topics[name]
            results.append(make.DeletableTopicResult(name=name, error_code=error, error_message=None, version=version))
        return make(throttle_time_ms=0, responses=results)

    def _describe_configs(self, request: Any, version: int) -> Any:
        make = DescribeConfigsResponse[version]
        results = []
        for wanted in request.resources:
            found = self._settings_of(wanted.resource_type, wanted.resource_name)
            entries = [
                make.DescribeConfigsResult.DescribeConfigsResourceResult(
                    name=name, value=value, read_only=False, is_default=False, config_source=1, is_sensitive=False,
                    synonyms=[], version=version,
                )
                for name, value in (found or {}).items()
            ]  # fmt: skip
            error = 0 if found is not None else UNKNOWN_TOPIC
            if found is not None and not self._may(wanted.resource_name, DESCRIBE_CONFIGS_RIGHT):
                error = TOPIC_DENIED
            results.append(
                make.DescribeConfigsResult(
                    error_code=self.next_error(DESCRIBE_CONFIGS) or error, error_message=None,
                    resource_type=wanted.resource_type, resource_name=wanted.resource_name,
                    configs=[] if error else entries, version=version,
                )
            )  # fmt: skip
        return make(throttle_time_ms=0, results=results)

    def _settings_of(self, kind: int, name: str) -> dict[str, str] | None:
        if kind == _BROKER:
            return {"transaction.max.timeout.ms": f"{self.transactions.longest}"}
        topic = self.topics.get(name)
        return None if topic is None else SETTINGS | topic.settings


def _invalid(batch: Batch, settings: dict[str, str]) -> int:
    """Return why Apache Kafka appends no record of a batch, although one record may be at fault; 0 if it does."""
    if len(batch.data) > int(settings["max.message.bytes"]):
        return TOO_LARGE
    if "message.timestamp.after.max.ms" in settings:
        latest = time.time() * 1000 + int(settings["message.timestamp.after.max.ms"])
        if any(record.timestamp > latest for record in batch.records()):
            return INVALID_TIMESTAMP
    if "compact" in settings["cleanup.policy"] and any(record.key is None for record in batch.records()):
        return INVALID_RECORD
    return 0


def _end(partition: ModelPartition, isolation: int) -> int:
    """Where a partition ends for a reader of this isolation level."""
    return partition.stable if isolation == _COMMITTED else partition.end


def _spoken(error: int, newer: bool) -> int:
    """What a request of this version calls the error: older ones have no word for a producer that is fenced."""
    return INVALID_PRODUCER_EPOCH if error == PRODUCER_FENCED and not newer else error
