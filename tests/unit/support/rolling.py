"""Small parts that stand for large ones, a writer's epochs without a driver, and drivers that remember nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import CleanUpContext, CommitRequest, CommitterInitContext, WriterInitContext
from outfall.protocol.step import EpochOptions
from outfall.s3 import S3Sink
from outfall.s3.rolling.pieces import WriterState
from outfall.s3.staged import StagedObject
from outfall.testing import LocalDriver
from tests.unit.support.fake_s3 import OURS, FakeS3

KIB = 1 << 10
"""Stands for a mebibyte: parts of 5 KiB are the smallest here, so that large objects are made in no time."""


class SmallParts(FakeS3):
    """Takes parts from 5 KiB on, and so do its sinks."""

    def __init__(self) -> None:
        super().__init__(smallest=5 * KIB)

    def sink(self, prefix: str = "out", **options: Any) -> S3Sink:
        sink = super().sink(prefix, **options)
        sink.options = sink.options.model_copy(update={"part_bytes": 5 * KIB})
        return sink


def driver(fake: FakeS3, recovery: str, workers: int = 1, **options: Any) -> LocalDriver:
    """A driver that remembers nothing, as after a restart."""
    return LocalDriver(fake.sink(**options), recovery, options=EpochOptions(worker_count=workers))


def ids(fake: FakeS3) -> list[int]:
    return sorted(json.loads(line)["id"] for body in fake.data().values() for line in body.splitlines())


def large(number: int, size: int) -> dict[str, Any]:
    return {"id": number, "text": "x" * size}


class Epochs:
    """One writer's epochs without a driver, and quick: what is handed over is published, and what is dead deleted."""

    def __init__(self, fake: FakeS3, **options: Any) -> None:
        self.fake = fake
        self.sink = fake.sink(**options)
        self.states: Sequence[WriterState] = ()
        self.epoch = 0
        fake.mark()

    def run(self, *batches: pa.RecordBatch, end: bool = False) -> list[StagedObject]:
        generation = 3 * self.epoch + 1
        context = WriterInitContext("sink", OURS, generation, self.epoch, part=None, attempt=self.epoch)
        sink = self.sink.bind(context)
        part: Any = sink.restore_writer(context, self.states) if self.states else sink.build("sink", 0, 1)
        for batch in batches:
            part.write_record_batch(batch)
        part.flush(end_of_input=end)
        staged: list[StagedObject] = part.prepare_commit()
        serializer = sink.writer_state_serializer()
        states = [serializer.serialize(state) for state in part.snapshot_state(self.epoch)]
        self.state_size = sum(map(len, states))
        self.states = [serializer.deserialize(1, state) for state in states]
        part.close()
        if staged:
            requests = [CommitRequest(each) for each in staged]
            sink.create_committer(CommitterInitContext("sink", OURS, generation, self.epoch)).commit(requests)
            assert {request.outcome.kind for request in requests} == {"committed"}
        self.sink.clean_up(CleanUpContext("sink", OURS, generation, states=dict, writer_states=lambda: self.states))
        self.epoch += 1
        return staged

    @property
    def buffered_rows(self) -> int:
        return sum(state.held().rows for state in self.states)


def text(size: int, byte: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"value": [byte * (size - 1)]})
