"""One value of every kind that sinks store, each field of it set, as this version writes it."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from outfall.async_sink.buffer import BufferedRequests
from outfall.file import FileSink
from outfall.file.growing.part_files import FileState
from outfall.file.stores.store import StagedFile
from outfall.http import HttpSink
from outfall.http.records import HttpRecord
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.kafka.parts.target import KafkaPartState
from outfall.kinesis import KinesisSink
from outfall.postgres import PostgresSink
from outfall.s3 import S3Sink
from outfall.s3.rolling.pieces import ObjectState, StoredPiece, WriterState
from outfall.s3.staged import StagedObject, UploadedPart
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sql.dialect import StagedRows
from outfall.sql.parts.writer import PartState
from outfall.tables.data_file import DataFile, EpochFiles, Layout, TaskFiles
from outfall.wrappers import ExactlyOnceSink
from outfall.wrappers.composite_committer import ChildValue, ChildValueSerializer, ListSerializer
from outfall.wrappers.cross_epoch_batching import BatchState, BatchStateSerializer
from outfall.wrappers.offsets import SeenOffsets, SeenState

THEN = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)
INCARNATION = "0123456789abcdef"
PIECE = f"{INCARNATION}/0000000007-00001-g5-a3-fedcba9876543210"

Kept = dict[str, tuple[SimpleVersionedSerializer[Any], Any]]
"""By name the serializer, as the sink that stores it has it, and the value."""


def values() -> Kept:
    """Return them all."""
    return {
        **_of_wrappers(),
        **_of_requests(),
        **_of_files(),
        **_of_tables(),
        **_of_table_formats(),
        **_of_topics(),
        **_of_objects(),
    }


def _of_wrappers() -> Kept:
    once: Any = ExactlyOnceSink(FileSink("/a"), offset="offset", source_partition="partition")
    held = BatchState(
        (
            pa.RecordBatch.from_pydict({"id": [1, None], "at": pa.array([THEN, None], pa.timestamp("us", "UTC"))}),
            pa.RecordBatch.from_pylist([{"ä": "€", "nested": {"list": [1.5, None]}}]),
        ),
        THEN,
    )
    seen = SeenState(partitions={"0": SeenOffsets(floor=3, ranges=[(5, 9), (11, 11)]), '["t", 1]': SeenOffsets()})
    child = ChildValueSerializer({"archive": JsonSerializer})
    return {
        "rows that wait for a batch": (BatchStateSerializer(), held),
        "seen offsets": (once.children()["seen"].state_serializer(), seen),
        "a child's": (child, ChildValue("archive", {"ä": [1, None]})),
        "several children's": (ListSerializer(child), [ChildValue("archive", 1), ChildValue("archive", "two")]),
    }


def _of_requests() -> Kept:
    bodies = [HttpRecord(b'{"id":1}', "https://host/1", "key"), HttpRecord('{"ä":2}'.encode(), "https://host/2")]
    records = [{"Data": b"\xff\x00", "PartitionKey": "ä", "ExplicitHashKey": "12"}, {"Data": b"x", "PartitionKey": "k"}]
    http, kinesis = HttpSink("https://host/x"), KinesisSink("s", region="us-east-1")
    return {
        "requests over HTTP that wait": (http.writer_state_serializer(), BufferedRequests(bodies)),
        "records for Kinesis that wait": (kinesis.writer_state_serializer(), BufferedRequests(records)),
    }


def _of_files() -> Kept:
    whole: Any = FileSink("/a")
    growing: Any = FileSink("/a", parts=2)
    staged = StagedFile(name="part-0.jsonl", size=27, rows=3, bucket="day=2026-11-21")
    return {
        "a staged file": (whole.committable_serializer(), staged),
        "a growing file": (growing.state_serializer(), FileState(offset=27, segment=4, since=THEN.timestamp())),
    }


def _of_tables() -> Kept:
    epochs: Any = PostgresSink("host=/a", "t")
    parts: Any = PostgresSink("host=/a", "t", parts=2)
    staged = StagedRows(stage=7, rows=3, columns=("id", "ä"), letters=2)
    return {
        "staged rows": (epochs.committable_serializer(), staged),
        "a part of a table": (parts.state_serializer(), PartState(next_offset=12)),
    }


def _of_table_formats() -> Kept:
    sink = IcebergSink("db.t")
    statistics = {"value_counts": {"1": 2}, "lower_bounds": {"1": "AQAAAA=="}, "split_offsets": [4]}
    files = TaskFiles(
        directory=f"outfall/{INCARNATION}/g5-{'f' * 16}",
        root="s3://bucket/t/data",
        layout=Layout(table="uuid", partitioning="day = day of column 1 (spec 0)", columns={"1": "integer"}),
        files=(DataFile(name="part-ä.parquet", size=9, rows=2, partition=("20", None), statistics=statistics),),
        published=3,
    )
    epoch = EpochFiles(**dict(files), recorded_at=THEN.timestamp(), recorded_by="0" * 16)
    return {
        "a task's data files": (sink.write_result_serializer(), files),
        "an epoch's data files": (sink.committable_serializer(), epoch),
    }


def _of_topics() -> Kept:
    parts: Any = KafkaSink("host:9092", "t", parts=2)
    state = KafkaPartState(next_offset=12, ledger_offset=7, commit="0f" * 8, ledger_id="l", topic_id="t")
    return {"a part of topics": (parts.state_serializer(), state)}


def _of_objects() -> Kept:
    plain: Any = S3Sink("lake", "flights")
    rolling: Any = S3Sink("lake", "flights", roll_rows=10)
    parts = (UploadedPart(number=1, etag='"e"', checksum={"ChecksumCRC32": "AAAAAA=="}),)
    common: dict[str, Any] = {"bucket": "lake", "key": "flights/part-0.jsonl", "size": 9, "rows": 2}
    held = ObjectState(
        path="day=2026-11-21",
        kind="bytes",
        encoding="digest",
        suffix=".jsonl.gz",
        headed=True,
        pieces=(StoredPiece(name=PIECE, size=9, level=2),),
        content=base64.b64encode(b"tail").decode(),
        rows=5,
        oldest=THEN,
    )
    return {
        "an upload": (
            plain.committable_serializer(), StagedObject(**common, id="0" * 32, upload_id="u", parts=parts),
        ),
        "an object in the record": (
            plain.committable_serializer(), StagedObject(**common, id="1" * 32, content="eA=="),
        ),
        "objects that wait": (rolling.writer_state_serializer(), WriterState(objects=(held,))),
    }  # fmt: skip


def write_values(path: Path) -> None:
    """Write them, with the versions of their serializers."""
    found = {
        name: {"version": serializer.version, "data": base64.b64encode(serializer.serialize(value)).decode()}
        for name, (serializer, value) in values().items()
    }
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
