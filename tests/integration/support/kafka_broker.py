"""A broker in memory that speaks Kafka's protocol over TCP: a model of one, and no proof of what a real one does.

It has what the log asks of a broker: metadata, topics with settings, idempotent produce, fetch, offsets, compaction on
demand; and faults: answers that are lost, errors instead of answers, silence. The codecs are kafka-python's.
"""

from __future__ import annotations

import asyncio
import io
import struct
import threading
from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.integration.support.kafka_topics import ModelTopic, Stored

UNKNOWN_TOPIC, TOPIC_EXISTS, BAD_REPLICATION, OUT_OF_RANGE, TOO_LARGE, NO_COORDINATOR = 3, 36, 38, 1, 10, 15

APIS: dict[int, tuple[Any, Any, int, int]] = {
    0: (ProduceRequest, ProduceResponse, 3, 7),
    1: (FetchRequest, FetchResponse, 4, 11),
    2: (ListOffsetsRequest, ListOffsetsResponse, 1, 5),
    3: (MetadataRequest, MetadataResponse, 0, 7),
    10: (FindCoordinatorRequest, FindCoordinatorResponse, 0, 2),
    18: (ApiVersionsRequest, ApiVersionsResponse, 0, 2),
    19: (CreateTopicsRequest, CreateTopicsResponse, 0, 4),
    22: (InitProducerIdRequest, InitProducerIdResponse, 0, 1),
    32: (DescribeConfigsRequest, DescribeConfigsResponse, 0, 1),
}
WORK = {
    0: "_produce", 1: "_fetch", 2: "_list_offsets", 3: "_metadata", 10: "_find_coordinator", 19: "_create_topics",
    22: "_init_producer_id", 32: "_describe_configs",
}  # fmt: skip
SETTINGS = {"cleanup.policy": "delete", "max.message.bytes": "1048588", "delete.retention.ms": "86400000"}


class ModelBroker:
    """Serves in a thread of its own until it is closed. Its `topics` may be looked into and changed at any time."""

    def __init__(self) -> None:
        """Begin to serve on a free port."""
        self.topics: dict[str, ModelTopic] = {}
        self.lock = threading.RLock()
        self.swallow: list[int] = []
        """Numbers of requests whose work is done and whose answer is lost; taken one by one."""
        self.silent: set[int] = set()
        """Numbers of requests that are never answered, nor their work done."""
        self.errors: dict[int, list[int]] = {}
        """Errors to answer with instead of working, by the number of the request."""
        self.asked: list[int] = []
        self._producers = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def compact(self, **how: Any) -> None:
        with self.lock:
            for topic in self.topics.values():
                topic.compact(**how)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = await self._answer(await reader.readexactly(size))
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def _answer(self, data: bytes) -> bytes | None:
        api, version, correlation = struct.unpack(">hhi", data[:8])
        self.asked.append(api)
        while api in self.silent:
            await asyncio.sleep(0.05)
        request_class, _, _, newest = APIS[api]
        flexible = version <= newest and request_class.flexible_version_q(version)
        stream = io.BytesIO(data)
        RequestHeader.decode(stream, flexible=flexible)
        if api == 18:
            answer = self._api_versions(version if version <= newest else 0, 0 if version <= newest else 35)
        else:
            request = request_class[version].decode(stream.read())
            work: Callable[[Any, int], Any] = getattr(self, WORK[api])
            if api == 1:
                await self._news(request)
            with self.lock:
                answer = work(request, version)
            if api in self.swallow:
                self.swallow.remove(api)
                return None
        answer.with_header(correlation_id=correlation)
        return bytes(answer.encode(header=True, framed=True))

    def _error(self, api: int) -> int:
        """The next error that a test has ordered for this request."""
        return self.errors[api].pop(0) if self.errors.get(api) else 0

    def _api_versions(self, version: int, error: int) -> Any:
        answer = ApiVersionsResponse[version]
        keys = [answer.ApiVersion(api_key=key, min_version=low, max_version=high, version=version)
                for key, (_, _, low, high) in APIS.items()]  # fmt: skip
        return answer(error_code=error, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, request: Any, version: int) -> Any:
        make = MetadataResponse[version]
        wanted = [topic.name for topic in request.topics or []] or (
            list(self.topics) if request.topics is None or version == 0 else []
        )
        topics = []
        for name in wanted:
            topic = self.topics.get(name)
            count = topic.partitions if topic else 0
            partitions = [
                make.MetadataResponseTopic.MetadataResponsePartition(
                    error_code=0, partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1],
                    offline_replicas=[], version=version,
                )
                for index in range(count)
            ]  # fmt: skip
            topics.append(
                make.MetadataResponseTopic(
                    error_code=0 if topic else UNKNOWN_TOPIC, name=name, is_internal=False, partitions=partitions,
                    version=version,
                )
            )  # fmt: skip
        broker = make.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port, rack=None, version=version)
        return make(throttle_time_ms=0, brokers=[broker], cluster_id="model", controller_id=1, topics=topics)

    def _find_coordinator(self, request: Any, version: int) -> Any:
        return FindCoordinatorResponse[version](
            throttle_time_ms=0, error_code=NO_COORDINATOR, error_message="", node_id=-1, host="", port=-1
        )

    def _init_producer_id(self, request: Any, version: int) -> Any:
        self._producers += 1
        return InitProducerIdResponse[version](
            throttle_time_ms=0, error_code=self._error(22), producer_id=self._producers, producer_epoch=0
        )

    def _produce(self, request: Any, version: int) -> Any:
        make = ProduceResponse[version]
        responses = []
        for data in request.topic_data:
            answers = []
            for part in data.partition_data:
                error, offset = self._produced(data.name, part)
                answers.append(
                    make.TopicProduceResponse.PartitionProduceResponse(
                        index=part.index, error_code=error, base_offset=offset, log_append_time_ms=-1,
                        log_start_offset=0, version=version,
                    )
                )  # fmt: skip
            responses.append(make.TopicProduceResponse(name=data.name, partition_responses=answers, version=version))
        return make(responses=responses, throttle_time_ms=0)

    def _produced(self, name: str, part: Any) -> tuple[int, int]:
        topic = self.topics.get(name)
        if topic is None:
            return UNKNOWN_TOPIC, -1
        if error := self._error(0):
            return error, -1
        raw = bytes(part.records)
        if len(raw) > int(topic.settings.get("max.message.bytes", SETTINGS["max.message.bytes"])):
            return TOO_LARGE, -1
        batches, first = MemoryRecords(raw), -1
        while (batch := batches.next_batch()) is not None:
            records = [Stored(0, record.timestamp, record.key, record.value) for record in batch]
            offset = topic.append((batch.producer_id, batch.producer_epoch), batch.base_sequence, records)
            first = offset if first < 0 and offset is not None else first
        return 0, first

    async def _news(self, request: Any) -> None:
        """Wait until there is something to fetch, or the request has waited as long as it says."""
        last = self._loop.time() + request.max_wait_ms / 1000
        while not self._has_news(request) and self._loop.time() < last:
            await asyncio.sleep(0.002)

    def _has_news(self, request: Any) -> bool:
        with self.lock:
            return any(
                part.fetch_offset < self.topics[wanted.topic].end
                for wanted in request.topics
                if wanted.topic in self.topics
                for part in wanted.partitions
            )

    def _fetch(self, request: Any, version: int) -> Any:
        make = FetchResponse[version]
        topics = []
        for wanted in request.topics:
            parts = []
            for part in wanted.partitions:
                topic = self.topics.get(wanted.topic)
                error = 0 if topic else UNKNOWN_TOPIC
                if topic and not 0 <= part.fetch_offset <= topic.end:
                    error = OUT_OF_RANGE
                error = error or self._error(1)
                found = topic.read(part.fetch_offset, part.partition_max_bytes) if topic and not error else []
                end = topic.end if topic else -1
                parts.append(
                    make.FetchableTopicResponse.PartitionData(
                        partition_index=part.partition, error_code=error, high_watermark=end, last_stable_offset=end,
                        log_start_offset=0, aborted_transactions=[], preferred_read_replica=-1, records=encoded(found),
                        version=version,
                    )
                )  # fmt: skip
            topics.append(make.FetchableTopicResponse(topic=wanted.topic, partitions=parts, version=version))
        return make(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)

    def _list_offsets(self, request: Any, version: int) -> Any:
        make = ListOffsetsResponse[version]
        topics = []
        for wanted in request.topics:
            topic = self.topics.get(wanted.name)
            parts = [
                make.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index,
                    error_code=self._error(2) if topic else UNKNOWN_TOPIC,
                    timestamp=-1,
                    offset=0 if part.timestamp == -2 or not topic else topic.end,
                    leader_epoch=0,
                    version=version,
                )
                for part in wanted.partitions
            ]
            topics.append(make.ListOffsetsTopicResponse(name=wanted.name, partitions=parts, version=version))
        return make(throttle_time_ms=0, topics=topics)

    def _create_topics(self, request: Any, version: int) -> Any:
        make = CreateTopicsResponse[version]
        results = []
        for new in request.topics:
            error = self._error(19) or (TOPIC_EXISTS if new.name in self.topics else 0)
            error = error or (BAD_REPLICATION if new.replication_factor > 1 else 0)
            if not error:
                settings = {setting.name: setting.value for setting in new.configs}
                self.topics[new.name] = ModelTopic(new.num_partitions, settings)
            results.append(
                make.CreatableTopicResult(name=new.name, error_code=error, error_message=None, version=version)
            )
        return make(throttle_time_ms=0, topics=results)

    def _describe_configs(self, request: Any, version: int) -> Any:
        make = DescribeConfigsResponse[version]
        results = []
        for wanted in request.resources:
            topic = self.topics.get(wanted.resource_name)
            settings = {**SETTINGS, **topic.settings} if topic else {}
            entries = [
                make.DescribeConfigsResult.DescribeConfigsResourceResult(
                    name=name, value=value, read_only=False, is_default=False, config_source=1, is_sensitive=False,
                    synonyms=[], version=version,
                )
                for name, value in settings.items()
            ]  # fmt: skip
            results.append(
                make.DescribeConfigsResult(
                    error_code=self._error(32) or (0 if topic else UNKNOWN_TOPIC), error_message=None,
                    resource_type=wanted.resource_type, resource_name=wanted.resource_name, configs=entries,
                    version=version,
                )
            )  # fmt: skip
        return make(throttle_time_ms=0, results=results)


def encoded(records: list[Stored]) -> bytes:
    """Put records into one batch that keeps their offsets, gaps among them."""
    if not records:
        return b""
    base = records[0].offset
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 30,
    )  # fmt: skip
    for record in records:
        builder.append(record.offset - base, record.timestamp, record.key, record.value, [])
    data = bytes(builder.build())
    return struct.pack(">q", base) + data[8:]
