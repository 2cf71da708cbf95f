"""The targets of a cluster: servers on the host of servers, and a folder that all hosts share."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.integration.postgres.support import Target as Table
from tests.integration.s3.support import Target as Bucket
from tests.integration.support.cluster_places import Files, Objects, Place, Records, Rows
from tests.integration.support.kafka_parts import make_topic
from tests.integration.support.postgres import Server
from tests.integration.support.s3 import SeaweedFS
from tests.peers.support.apache_kafka import ApacheKafka
from tests.peers.support.spark_cluster import SERVERS, Cluster

MODES = ("whole", "growing", "postgres", "postgres parts", "s3", "kafka parts")
ALONE = ("growing", "kafka parts")
"""Those of which Spark may run no two attempts of a task at once."""


class Targets:
    """Servers that run until `close`."""

    def __init__(self, cluster: Cluster) -> None:
        """Start them."""
        host = cluster.hosts[SERVERS]
        self._stack = ExitStack()
        folders = {name: cluster.network.folder / name for name in ("postgres", "s3", "kafka")}
        for folder in folders.values():
            folder.mkdir()
        with host.entered():
            self.postgres = Server(folders["postgres"], host=host.address)
            self.postgres.start()
            self._stack.callback(self.postgres.stop)
            self.s3 = SeaweedFS(folders["s3"], host.address)
            self.s3.start()
            self._stack.callback(self.s3.kill)
            self.kafka = ApacheKafka(folders["kafka"], host=host.address)
            self._stack.callback(self.kafka.kill)
            self.kafka.start()

    def place(self, mode: str, root: Path) -> Place:
        """Make an empty target for a sink."""
        if mode.startswith("postgres"):
            dsn = make_conninfo(self.postgres.new_database(), sslmode="disable")
            return Rows(Table(dsn, "CREATE TABLE t (id bigint, k text)"))
        if mode.startswith("s3"):
            return Objects(Bucket(self.s3.s3))
        if mode.startswith("kafka"):
            topic = f"test-{uuid.uuid4().hex}"
            make_topic(self.kafka.address, topic, 2)
            return Records(self.kafka.address, topic)
        return Files(root / "out")

    def close(self) -> None:
        """End them."""
        self._stack.close()
