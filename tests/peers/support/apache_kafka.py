"""Apache Kafka from Maven's jars: one or several brokers, that may be killed, stopped and started again on their disks.

Version 4.3 runs in KRaft. A single broker is its own controller; several have a controller beside them, so that the
loss of a broker is no more than that. Version 2.8 has ZooKeeper in the controller's place. All settings are Apache's,
except for the number of replicas, small internal topics, small buffers, and what a test gives.
"""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from tests.integration.support.certificates import self_signed
from tests.integration.support.kafka_server import ADDRESS
from tests.integration.support.servers import OwnServer, free_ports, listens, open_folder
from tests.integration.support.waiting import until
from tests.peers.support.jars import class_path, java

NEWEST, OLDEST = "kafka-4.3", "kafka-2.8"
"""Profiles of the POM. The oldest one has the transactions that were there before KIP-890, and has topic ids."""

USER, PASSWORD = "outfall", "a-secret-of-the-tests"
_SECONDS = 120
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_SMALL = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    "num.network.threads": 2,
    "num.io.threads": 4,
}
_quiet: Any = logging.getLogger(__name__)


class Node(OwnServer):
    """A process of the cluster, with a folder for its settings, its log and its disk."""

    def __init__(
        self, profile: str, folder: Path, port: int, main: str, properties: Mapping[str, Any], host: str
    ) -> None:
        """Write its settings; start nothing yet."""
        folder.mkdir()
        self.port = port
        self.log = folder / "log"
        self._java = [java(), *_JAVA, "-cp", class_path(profile)]
        self._settings_file = folder / "server.properties"
        self._settings_file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        command = [*self._java, "-Xmx400m", main, str(self._settings_file)]
        super().__init__(command, self.log, lambda: listens(port, host))

    def format(self, *options: str) -> None:
        """Prepare its disk, as KRaft wants it."""
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings_file), *options]
        done = subprocess.run([*self._java, *tool], capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


class ApacheKafka:
    """A cluster: `brokers` are its nodes, and `address` is where clients begin."""

    def __init__(
        self,
        folder: Path,
        profile: str = NEWEST,
        *,
        brokers: int = 1,
        secure: bool = False,
        host: str = "127.0.0.1",
        **settings: Any,
    ) -> None:
        """Prepare its disks; start nothing yet.

        Args:
            folder: where its disks are.
            profile: the version.
            brokers: how many there are.
            secure: whether clients need TLS and a password; see `security`. Not with the oldest version.
            host: the address that all listen on.
            settings: of the brokers, with underscores for dots.
        """
        self.profile = profile
        self.folder = folder
        self._host = host
        self._secure = secure
        self._given = {name.replace("_", "."): value for name, value in settings.items()}
        self._kraft = profile != OLDEST
        # Who starts a server must live as long as it.
        self._starter = ThreadPoolExecutor(1)
        control, *ports = free_ports(1 + brokers)
        self._control = f"{host}:{control}"
        if secure:
            (folder / "broker.pem").write_bytes(self_signed(host))
        alone = self._kraft and brokers == 1
        self.controller = None if alone else self._make_controller(control)
        self.brokers = [self._make_broker(number, port, brokers) for number, port in enumerate(ports, 1)]
        self.address = ",".join(f"{host}:{port}" for port in ports)

    @property
    def security(self) -> dict[str, str]:
        """The properties of a client, librdkafka's."""
        if not self._secure:
            return {}
        return {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER, "sasl.password": PASSWORD, "ssl.ca.location": str(self.folder / "broker.pem"),
        }  # fmt: skip

    def start(self) -> None:
        """Start all, and return when each broker answers and knows the others."""
        if self.controller is not None:
            self.controller.start()
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            self.wait(broker)

    def restart(self, broker: Node) -> Future[None]:
        """Start a broker again, on the disk that it had; it is done when it answers and knows the others."""
        return self._starter.submit(self._start_again, broker)

    def wait(self, broker: Node) -> None:
        """Return when a broker answers, and each broker that runs takes part."""
        broker.wait_ready(_SECONDS)
        client = AdminClient({"bootstrap.servers": f"{self._host}:{broker.port}", "logger": _quiet, **self.security})
        running = sum(each.running for each in self.brokers)
        until(lambda: _known(client) >= running, f"{running} brokers", _SECONDS)

    def kill(self) -> None:
        """Kill all; what they have promised is on their disks."""
        for node in (*self.brokers, self.controller):
            if node is not None:
                node.kill()
        self._starter.shutdown()

    def _start_again(self, broker: Node) -> None:
        if not self._kraft:
            # A broker that comes back before ZooKeeper has missed it gives up.
            name = b"/brokers/ids/%d\n" % (self.brokers.index(broker) + 1)
            until(lambda: name not in self._ephemeral(), "the end of its session", _SECONDS)
        broker.launch()
        self.wait(broker)

    def _ephemeral(self) -> bytes:
        """Ask ZooKeeper who is there."""
        host, _, port = self._control.partition(":")
        with socket.create_connection((host, int(port)), timeout=_SECONDS) as asked:
            asked.sendall(b"dump")
            return b"".join(iter(lambda: asked.recv(4096), b"")) + b"\n"

    def _make_controller(self, port: int) -> Node:
        folder = self.folder / "controller"
        if not self._kraft:
            settings = {"dataDir": folder / "data", "clientPort": port, "clientPortAddress": self._host}
            quick = {"tickTime": 500, "admin.enableServer": "false", "maxClientCnxns": 0}
            quick["4lw.commands.whitelist"] = "dump"
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            return Node(self.profile, folder, port, main, settings | quick, self._host)
        roles = {"process.roles": "controller", "node.id": 100, "listeners": f"CONTROLLER://{self._control}"}
        made = Node(self.profile, folder, port, "kafka.Kafka", self._shared(folder, 100) | roles, self._host)
        made.format(*self._users())
        return made

    def _make_broker(self, number: int, port: int, brokers: int) -> Node:
        folder = self.folder / f"broker-{number}"
        kind = "SASL_SSL" if self._secure else "PLAINTEXT"
        listener = f"{kind}://{self._host}:{port}"
        settings = self._shared(folder, 100 if self.controller else number) | {
            "listeners": listener, "advertised.listeners": listener, "inter.broker.listener.name": kind,
            "default.replication.factor": brokers, "offsets.topic.replication.factor": brokers,
            "transaction.state.log.replication.factor": brokers,
            "transaction.state.log.min.isr": min(2, brokers), "min.insync.replicas": min(2, brokers),
        }  # fmt: skip
        if not self._kraft:
            settings |= {
                "broker.id": number, "zookeeper.connect": self._control, "zookeeper.session.timeout.ms": 6000
            }  # fmt: skip
        elif self.controller is None:
            both = f"{listener},CONTROLLER://{self._control}"
            settings |= {"process.roles": "broker,controller", "node.id": number, "listeners": both}
        else:
            settings |= {"process.roles": "broker", "node.id": number}
        settings |= self._securing() | _SMALL | self._given
        made = Node(self.profile, folder, port, "kafka.Kafka", settings, self._host)
        if self._kraft:
            made.format(*self._users())
        return made

    def _shared(self, folder: Path, controller: int) -> dict[str, Any]:
        kraft = {
            "controller.quorum.voters": f"{controller}@{self._control}",
            "controller.listener.names": "CONTROLLER",
            # A broker that comes back is let in when its former life is missed.
            "broker.session.timeout.ms": 6000,
            "broker.heartbeat.interval.ms": 1000,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        }
        return {"log.dirs": folder / "data"} | (kraft if self._kraft else {})

    def _users(self) -> list[str]:
        """What the disk must say of those that a SCRAM listener knows: brokers among them."""
        return ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"] if self._secure else []

    def _securing(self) -> dict[str, Any]:
        if not self._secure:
            return {}
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config":
                f'{module} required username="{USER}" password="{PASSWORD}";',
            "ssl.keystore.type": "PEM", "ssl.keystore.location": self.folder / "broker.pem",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.folder / "broker.pem",
        }  # fmt: skip


def _known(client: AdminClient) -> int:
    try:
        return len(client.list_topics(timeout=5).brokers)
    except KafkaException:
        return 0


@contextmanager
def own_cluster(profile: str = NEWEST, **options: Any) -> Iterator[ApacheKafka]:
    """Run a cluster; see `ApacheKafka`."""
    with open_folder() as folder:
        cluster = ApacheKafka(folder, profile, **options)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()


@contextmanager
def served(profile: str) -> Iterator[dict[str, str]]:
    """Run a broker, and yield the variable that leads to it."""
    with own_cluster(profile) as cluster:
        yield {ADDRESS: cluster.address}


def topic_id(brokers: str, topic: str) -> str:
    """Return the id of a topic; empty without one."""
    client = AdminClient({"bootstrap.servers": brokers})
    if topic not in client.list_topics(timeout=10).topics:
        return ""
    (found,) = client.describe_topics(TopicCollection([topic])).values()
    return str(found.result().topic_id)


def make_again(brokers: str, topic: str) -> None:
    """Delete a topic and create it with as many partitions."""
    client, partitions = AdminClient({"bootstrap.servers": brokers}), partitions_of(brokers, topic)
    client.delete_topics([topic])[topic].result()
    until(lambda: not topic_id(brokers, topic), "the topic to be gone", _SECONDS)
    client.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])[topic].result()


def add_partitions(brokers: str, topic: str, number: int = 3) -> None:
    """Give a topic more partitions."""
    client = AdminClient({"bootstrap.servers": brokers})
    client.create_partitions([NewPartitions(topic, partitions_of(brokers, topic) + number)])[topic].result()


def partitions_of(brokers: str, topic: str) -> int:
    """Return how many partitions a topic has."""
    return len(AdminClient({"bootstrap.servers": brokers}).list_topics(topic, timeout=10).topics[topic].partitions)
