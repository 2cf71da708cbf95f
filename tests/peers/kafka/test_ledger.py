"""A ledger over a long time: records that were aborted, compaction, and producer epochs that come to their end."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from outfall.kafka.producer.transactions import TransactionalProducer
from tests.integration.support.kafka_broker import END_TXN, INIT_PRODUCER_ID, ModelBroker
from tests.integration.support.kafka_held import HoldingProxy
from tests.integration.support.kafka_parts import PartsTopic, rows_of
from tests.integration.support.kafka_reader import Read, ends, read
from tests.integration.support.waiting import until
from tests.peers.support.apache_kafka import NEWEST, OLDEST, own_cluster

pytestmark = pytest.mark.faults

COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1",
    "delete.retention.ms": "20000",
}  # fmt: skip
LAST_EPOCH = 32_766
"""Of a producer id; then the brokers give the transactional id another one."""


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(OLDEST, marks=pytest.mark.long)])
def tidy(request: pytest.FixtureRequest) -> Iterator[str]:
    """A broker that compacts all the time."""
    with own_cluster(request.param, log_cleaner_backoff_ms=200) as cluster:
        yield cluster.address


@pytest.fixture
def proxy(tidy: str) -> Iterator[HoldingProxy]:
    with HoldingProxy(tidy) as made:
        yield made


def register(topic: PartsTopic, part: str, fenced: list[str]) -> None:
    """Abort what a part has written, its record in the ledger too, as whoever takes over does."""
    (name,) = {each.key.decode() for each in stored(topic) if each.key and each.key.endswith(f"/{part}".encode())}
    made = TransactionalProducer(topic.address, topic.sink().options.client, 20, transactional_id=f"outfall/{name}")
    made.open().init(topic.ledger)
    made.shut()
    fenced.append(name)


def stored(topic: PartsTopic) -> list[Read]:
    """Return what lies in the ledger, aborted records too."""
    return read(topic.address, topic.ledger, isolation="read_uncommitted")


@pytest.mark.parametrize("compacted", [False, True])
def test_a_ledger_with_aborted_records(proxy: HoldingProxy, compacted: bool, tmp_path: Path) -> None:
    """In every third epoch a part is fenced between its record and its commit; the readers go on behind that."""
    topic = PartsTopic(proxy.address, tmp_path)
    if compacted:
        client = AdminClient({"bootstrap.servers": topic.address})
        client.create_topics([NewTopic(topic.ledger, 1, 1, config=COMPACTED)])[topic.ledger].result(20)
    query, fenced = topic.query(), list[str]()
    for epoch in range(24):
        if epoch % 3 == 2:
            part = f"{epoch % 2}"
            proxy.before(END_TXN, f"/{topic.name}/{part}", deed=partial(register, topic, part, fenced))
        if epoch % 7 == 6:
            query = topic.query(f"process {epoch}")
        query.epoch(epoch)
    assert len(fenced) == 8
    end = ends(topic.address, topic.ledger)[0]
    assert end > 24 * 6, "three records and their markers in each epoch"
    if compacted:
        until(lambda: len(stored(topic)) < 24, "compaction", 60)
    else:
        assert len(stored(topic)) == len(read(topic.address, topic.ledger)) + 8
    query.epoch(24)
    topic.query("last").epoch(25)
    assert topic.holds(*map(rows_of, range(26)))


@pytest.mark.long
def test_producer_epochs_that_come_to_their_end(newest: str, tmp_path: Path) -> None:
    """Each registration takes one of 32,767 epochs of a producer id, behind which the brokers give another id."""
    topic = PartsTopic(newest, tmp_path)
    query = topic.query(parts=1, reuse_producers=False)
    query.epoch(0)
    names = [each.key.decode() for each in stored(topic) if each.key]
    ids = [f"outfall/{name}" if name.endswith("/0") else f"outfall/{name}/driver" for name in sorted(set(names))]
    producers = {name: use_up(newest, name) for name in ids}
    for epoch in range(1, 8):
        query.epoch(epoch)
    assert topic.holds(*map(rows_of, range(8)))
    # They have gone over the end.
    assert all(registered(connected(newest), name)[0] != producers[name] for name in ids)


def connected(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def use_up(address: str, transactional_id: str) -> int:
    """Register an id until few epochs are left, and return its producer id."""
    with closing(connected(address)) as connection:
        while True:
            producer, epoch = registered(connection, transactional_id)
            if epoch >= LAST_EPOCH - 3:
                return producer


def registered(connection: socket.socket, transactional_id: str) -> tuple[int, int]:
    """Register an id by a bare request; return its producer id and its epoch."""
    api = ModelBroker.apis[INIT_PRODUCER_ID]
    request = api.request[1](transactional_id=transactional_id, transaction_timeout_ms=60_000)
    request.with_header(correlation_id=1, client_id="test")
    connection.sendall(request.encode(header=True, framed=True))
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    answer = api.response[1].decode(io.BytesIO(connection.recv(size, socket.MSG_WAITALL)[4:]))
    return answer.producer_id, answer.producer_epoch
