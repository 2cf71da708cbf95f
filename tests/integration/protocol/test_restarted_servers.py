"""A server that is down when a task begins and then comes back: each sink waits for it, with one attempt per task."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest
from pyiceberg.catalog import load_catalog

from outfall.dynamodb import DynamoDBSink
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.opensearch import OpenSearchSink
from outfall.redis import RedisSink
from outfall.s3 import S3Sink
from outfall.testing import LocalDriver, TcpProxy
from tests.integration.dynamodb.server import dynamo_server
from tests.integration.kinesis.server import aws_server
from tests.integration.opensearch.model import model_process
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.http_receiver import accepted, receiver_process
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_parts import make_topic
from tests.integration.support.kafka_reader import read
from tests.integration.support.redis_server import redis_server, rows_of
from tests.integration.support.s3 import S3
from tests.integration.support.servers import free_port

pytestmark = pytest.mark.thorough

AWAY = 1.5
"""Seconds for which connections are refused."""
Rows = Callable[[], list[int]]


class Servers:
    """Sinks whose servers are behind a proxy, and how their rows are read past it."""

    def __init__(self, stack: ExitStack, folder: Path, s3: S3, patch: pytest.MonkeyPatch) -> None:
        self._stack, self._folder, self._s3, self._patch = stack, folder, s3, patch
        self.name = f"t-{secrets.token_hex(6)}"
        self.proxy: TcpProxy

    def through(self, url: str) -> str:
        place = urlsplit(url)
        self._at = (str(place.hostname), place.port or 80)
        self.proxy = TcpProxy(*self._at, listen=free_port())
        return url.replace(place.netloc, f"127.0.0.1:{self.proxy.port}")

    def leave(self) -> None:
        """Refuse connections, and accept them again after a time."""
        port = self.proxy.port
        self.proxy.close()

        def come_back() -> None:
            self.proxy = TcpProxy(*self._at, listen=port)

        threading.Timer(AWAY, come_back).start()

    def redis(self) -> tuple[Any, Rows]:
        server = self._stack.enter_context(redis_server())
        url = self.through(f"redis://127.0.0.1:{server.port}/0")
        return RedisSink(url, "r:{id}"), lambda: [int(row["id"]) for row in rows_of(server.client()).values()]

    def opensearch(self) -> tuple[Any, Rows]:
        cluster = self._stack.enter_context(model_process(self._folder))
        sink = OpenSearchSink(self.through(cluster.url), index=self.name, key_columns="id")
        return sink, lambda: [row["id"] for row in cluster.rows(self.name).values()]

    def dynamodb(self) -> tuple[Any, Rows]:
        dynamo = self._stack.enter_context(dynamo_server())
        dynamo.new_table(self.name)
        sink = DynamoDBSink(self.name, region="us-east-1", endpoint_url=self.through(dynamo.endpoint))
        return sink, lambda: [int(row["id"]) for row in dynamo.rows(self.name)]

    def http(self) -> tuple[Any, Rows]:
        url = f"{self._stack.enter_context(receiver_process())}/keys-{self.name}"
        return HttpSink(self.through(url)), lambda: [row["id"] for row in accepted(url)]

    def kinesis(self) -> tuple[Any, Rows]:
        aws = self._stack.enter_context(aws_server())
        aws.new_stream(self.name, shards=1)
        sink = KinesisSink(self.name, region="us-east-1", endpoint_url=self.through(aws.endpoint))
        return sink, lambda: [json.loads(record["Data"])["id"] for record in aws.records(self.name)]

    def firehose(self) -> tuple[Any, Rows]:
        aws = self._stack.enter_context(aws_server())
        aws.new_delivery_stream(self.name)
        sink = FirehoseSink(self.name, region="us-east-1", endpoint_url=self.through(aws.endpoint))
        return sink, lambda: [json.loads(line)["id"] for line in aws.lines(self.name)]

    def kafka(self, **options: Any) -> tuple[Any, Rows]:
        broker = ModelBroker()
        self._stack.callback(broker.close)
        address = urlsplit(self.through(f"//127.0.0.1:{broker.port}")).netloc
        broker.advertised = self.proxy.port
        make_topic(address, self.name, 2)
        sink = KafkaSink(address, self.name, value_format="json", **options)
        return sink, lambda: [json.loads(record.value or b"")["id"] for record in read(address, self.name)]

    def kafka_parts(self) -> tuple[Any, Rows]:
        return self.kafka(parts=2, replication_factor=1)

    def _bucket(self) -> str:
        self._s3.client().create_bucket(Bucket=self.name)
        return self.through(self._s3.endpoint)

    def _lines(self) -> list[int]:
        found = self._s3.objects(self.name, "d/").items()
        return [json.loads(line)["id"] for key, body in found if not key.startswith("_") for line in body.splitlines()]

    def s3(self, **options: Any) -> tuple[Any, Rows]:
        sink = S3Sink(self.name, "d", region="us-east-1", endpoint_url=self._bucket(), **options)
        return sink, self._lines

    def s3_rolling(self) -> tuple[Any, Rows]:
        return self.s3(roll_rows=1)

    def files(self) -> tuple[Any, Rows]:
        self._patch.setenv("AWS_ENDPOINT_URL", self._bucket())
        return FileSink(f"s3://{self.name}/d"), self._lines

    def iceberg(self) -> tuple[Any, Rows]:
        options = {
            "type": "sql", "uri": f"sqlite:///{self._folder}/catalog", "warehouse": f"s3://{self.name}/d",
            "s3.endpoint": self._bucket(), "s3.access-key-id": self._s3.key, "s3.secret-access-key": self._s3.secret,
            "s3.region": "us-east-1",
        }  # fmt: skip
        catalog = load_catalog("c", **options)
        catalog.create_namespace("n")
        sink = IcebergSink("n.t", catalog="c", create_table="if_missing", catalog_options=options)
        return sink, lambda: list(catalog.load_table("n.t").scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def servers(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    for variable, value in s3.environment.items():
        if variable != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(variable, value)
    # Kept with the endpoint that the environment had when another test asked for one.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with ExitStack() as stack:
        made = Servers(stack, tmp_path, s3, monkeypatch)
        yield made
        made.proxy.close()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize(
    "sink",
    ["redis", "opensearch", "dynamodb", "http", "kinesis", "firehose", "kafka", "kafka_parts", "s3", "s3_rolling",
     "files", "iceberg"],
)  # fmt: skip
def test_a_server_that_is_down_when_a_task_begins(servers: Servers, sink: str, tmp_path: Path) -> None:
    made, rows = getattr(servers, sink)()
    fixed = sink == "kafka_parts"
    driver = (LocalDriver if fixed else BatchDriver)(made, str(tmp_path / "recovery"))
    made.check_schema(batch(id=[0]).schema)

    def write(epoch: int, before: Callable[[], object]) -> None:
        tasks: list[Any] = [[("0", {"id": epoch})]] if fixed else [batch(id=[epoch])]
        with closing(driver.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            before()
            coordinator.finish(ticket, driver.run_tasks(ticket, epoch, tasks))

    write(0, lambda: None)
    write(1, servers.leave)
    assert sorted(rows()) == [0, 1]
