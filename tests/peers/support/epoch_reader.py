"""Reads all copies in one snapshot while epochs are written, and compares them with the topics at an epoch's end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from outfall.delivery_order import PER_GENERATION, PER_OFFSET
from tests.peers.support.changed_tables import Table, Tables
from tests.peers.support.debezium_stream import Stream

Keys = dict[tuple[str, ...], int]
"""The sequences of the rows of a table."""
_PAUSE = 0.3


class EpochReader:
    """Looks at copies while they are written: at each moment, they are the topics as the newest epoch has read them.

    Which epoch that is, the ledger says in the same snapshot; how far it has read, Spark's checkpoint.
    """

    def __init__(self, stream: Stream, tables: Sequence[Table]) -> None:
        """Begin to look at some of the tables."""
        self._stream = stream
        self._tables = tables
        self._seen: list[tuple[int, dict[str, Any], dict[str, Keys]]] = []
        self._ends = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._ends.set()
        self._thread.join()

    def differences(self) -> tuple[int, list[str]]:
        """Return how many epochs were seen, and where a copy was another one than that of its epoch."""
        if self._failed:
            raise self._failed[0]
        changes = {table.name: _changes(self._stream, table) for table in self._tables}
        found = []
        for epoch, offsets, copies in self._seen:
            for table in self._tables:
                read = offsets.get(self._stream.topic_of(table), {})
                expected: Keys = {}
                for partition, offset, key, sequence in changes[table.name]:
                    if offset < read.get(str(partition), 0):
                        expected.pop(key, None)
                        expected.update({} if sequence is None else {key: sequence})
                if copies[table.name] != expected:
                    keys = sorted(expected.keys() | copies[table.name].keys())
                    both = [(key, expected.get(key), copies[table.name].get(key)) for key in keys]
                    differ = [(key, given, seen) for key, given, seen in both if given != seen]
                    found.append(f"epoch {epoch}, {table.name}: {len(differ)} differ, such as {differ[:4]}")
        return len({epoch for epoch, _, _ in self._seen}), found

    def _look(self) -> None:
        copy = self._stream.copy
        assert isinstance(copy, Tables)
        try:
            with closing(copy.connect()) as connection:
                while not self._ends.wait(_PAUSE):
                    self._read(copy, connection.cursor())
                    connection.rollback()
        except BaseException as error:
            self._failed.append(error)

    def _read(self, copy: Tables, cursor: Any) -> None:
        for statement in copy.one_snapshot:
            cursor.execute(statement)
        cursor.execute(copy.newest_epoch())
        if (epoch := cursor.fetchone()[0]) is None:
            return
        copies = {table.name: dict(_rows(copy, table, cursor)) for table in self._tables}
        offsets = json.loads((self._stream.folder() / "offsets" / str(epoch)).read_text().splitlines()[-1])
        self._seen.append((epoch, offsets, copies))


def _rows(copy: Tables, table: Table, cursor: Any) -> Iterable[tuple[tuple[str, ...], int]]:
    cursor.execute(f"SELECT {', '.join(map(copy.quoted, table.key))}, seq FROM {copy.quoted(table.name)}")
    return ((tuple(map(str, key)), int(sequence)) for *key, sequence in cursor.fetchall())


def _changes(stream: Stream, table: Table) -> list[tuple[int, int, tuple[str, ...], int | None]]:
    """Return the changes in the topic of a table in their order: partition, offset, key and sequence."""
    topic = stream.topic_of(table)
    settings = {"group.id": topic, "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": stream.kafka, **settings})
    found = []
    with closing(consumer):
        left = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        while left:
            for message in consumer.consume(1000, 1):
                partition, offset, value = message.partition() or 0, message.offset() or 0, message.value()
                if message.error():
                    left.discard(partition)
                elif value is not None:
                    key = tuple(map(str, json.loads(message.key() or b"").values()))
                    sequence = PER_GENERATION + offset * PER_OFFSET + partition
                    there = json.loads(value)["op"] != "d"
                    found.append((partition, offset, key, sequence if there else None))
    return found
