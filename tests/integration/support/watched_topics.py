"""A topic into which lives of a driver write by parts, as a `read_committed` reader of another client sees it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from outfall.kafka import KafkaSink
from outfall.testing.tcp_proxy import Deed, Direction, NetworkFault, TcpProxy
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_parts import make_topic
from tests.integration.support.kafka_reader import TopicReader, ends
from tests.integration.support.lives import Row
from tests.integration.support.servers import free_port
from tests.integration.support.watched_places import Outage, Place, row_of

PARTS = 4
DEEDS: list[Deed] = ["drop", "stall", "reset"]
DIRECTIONS: list[Direction] = ["request", "reply"]


class Topic(Place):
    """A topic of a cluster.

    Args:
        address: of the cluster.
        outage: makes the cluster unreachable, if anything can.
        partitions: of the topic. Not even in one is a transaction seen as a whole: behind its first records may lie
            those of another one that is open, where the last stable offset stays.
        timeout: the sink's `delivery_timeout` in seconds.
    """

    repeatable = True
    counts = (0, 1, 80, 300, 700)
    pause = 0.3

    def __init__(self, address: str, outage: Outage | None = None, partitions: int = 1, timeout: int = 10) -> None:
        self._address = address
        self.outage = outage
        self._name = f"test-{uuid.uuid4().hex}"
        make_topic(address, self._name, partitions)
        self.sink = KafkaSink(
            address, self._name, parts=PARTS, value_format="json", delivery_timeout=timeout,
            create_topic="if_missing", partitions=partitions, replication_factor=1,
        )  # fmt: skip
        self._reader = TopicReader(self._address, self._name)
        self._rows: list[Row] = []

    def rows(self) -> list[Row]:
        self._rows += [row_of(record.value or b"") for record in self._reader.read()]
        return list(self._rows)

    def leftovers(self) -> list[str]:
        stable = ends(self._address, self._name, isolation="read_committed")
        whole = ends(self._address, self._name)
        return [] if stable == whole else [f"a transaction that is open: readers see {stable} of {whole}"]

    def close(self) -> None:
        self._reader.close()


class ProxiedModel:
    """The tests' own broker behind a proxy, through which the lives find it."""

    def __init__(self) -> None:
        """Serve from now on."""
        self.broker = ModelBroker()
        self.proxy = TcpProxy("127.0.0.1", self.broker.port, listen=free_port())
        self.broker.advertised = self.proxy.port
        self.address = f"127.0.0.1:{self.proxy.port}"

    @contextmanager
    def outage(self, chance: random.Random) -> Iterator[None]:
        """Lose all answers, hold all requests back, or reset each connection again and again."""
        lift = self.proxy.inject(NetworkFault(chance.choice(DEEDS), chance.choice(DIRECTIONS)))
        try:
            yield
        finally:
            lift()
            # What was swallowed would never come.
            self.proxy.drop_connections()

    def close(self) -> None:
        self.proxy.close()
        self.broker.close()
