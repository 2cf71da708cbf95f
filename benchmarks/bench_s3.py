"""Throughput of uploads with `S3Sink` and boto3, and driver time to complete 200 objects.

python -m benchmarks.bench_s3 --rows 2000 --pairs 5

`--rows` counts MB. The server discards all data, so only the client is measured.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
import pyarrow as pa
from boto3.s3.transfer import TransferConfig

from benchmarks.common import Given, finish, known, machine, parse, seconds
from benchmarks.discarding_s3 import discarding_s3
from benchmarks.results import Figure, Line, Result, now
from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.s3 import S3Sink
from outfall.s3.staged import StagedObject, UploadedPart
from outfall.testing.benchmark import ratios
from outfall.testing.benchmark.runs import rounds

DEFAULT = Given(rows=500, pairs=5)
MB = 1_000_000
PART_SIZE = 8 << 20
CONCURRENCY = 8
OBJECTS = 200
COMPLETION = 0.05
"""Seconds in which the server completes an upload; similar to S3."""
OURS, BOTO, ENCODED = "S3Sink's upload", "boto3's upload_fileobj", "S3Sink, text of 1 kB a row"
ALL, SINGLE = f"{OBJECTS} objects", f"slowest single one x {OBJECTS} / {CONCURRENCY}"


def session() -> Any:
    return boto3.session.Session("key", "secret", region_name="us-east-1")


def sink(address: str) -> S3Sink:
    return S3Sink(
        "bucket", "out", endpoint_url=address, session_factory=session, path_style=True, format="text", inline_bytes=0,
        part_bytes=PART_SIZE, max_concurrency=CONCURRENCY,
    )  # fmt: skip


def uploads(given: Given) -> Result:
    """Upload the same bytes with each client, alternately."""
    started = now()
    size = given.rows * MB
    body = bytes(bytearray(range(250)) * (size // 250))
    batch = pa.record_batch({"value": ["x" * 999] * 1000})
    with discarding_s3() as address:
        ways: dict[str, Callable[[], None]] = {
            OURS: lambda: _ours(address, body),
            BOTO: lambda: _boto(address, body),
            ENCODED: lambda: _encoded(address, batch, given.rows),
        }
        figures: dict[str, list[float]] = {name: [] for name in ways}
        for number, name in rounds(ways, 1 + given.pairs):
            begun = time.perf_counter()
            ways[name]()
            if number > 0:  # the first warms up
                figures[name].append(given.rows / (time.perf_counter() - begun))
    peers = {OURS: {"boto3": BOTO}, ENCODED: {"boto3": BOTO}, BOTO: {}}
    lines = [
        Line(
            group=f"{given.rows} MB, parts of 8 MiB, {CONCURRENCY} at once",
            label=name,
            figure=known(Figure.of(figures[name])),
            ratios={peer: known(Figure.of(ratios(figures[name], figures[job]))) for peer, job in peers[name].items()},
        )
        for name in ways
    ]
    return Result(
        benchmark="s3",
        title="Uploads to S3",
        unit="MB/s",
        wanted={"boto3": "≥ 0.9 for the same bytes"},
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def completions(given: Given) -> Result:
    """Complete many uploads concurrently, and some one by one."""
    started = now()
    figures: dict[str, list[float]] = {ALL: [], SINGLE: []}
    with discarding_s3(COMPLETION) as address:
        for number in range(1 + given.pairs):
            all_of_them = _commit(address, OBJECTS)
            slowest = max(_commit(address, 1) for _ in range(10))
            if number > 0:
                figures[ALL].append(all_of_them)
                figures[SINGLE].append(slowest * OBJECTS / CONCURRENCY)
    group = f"{CONCURRENCY} at once, {COMPLETION * 1000:.0f} ms each"
    peers = {ALL: {"slowest single": SINGLE}, SINGLE: {}}
    return Result(
        benchmark="s3-commit",
        title="Completing uploads in S3",
        unit="s",
        wanted={"slowest single": "≤ 1.5"},
        lines=[seconds(group, name, figures, peers[name]) for name in figures],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _writer(address: str) -> Any:
    context = WriterInitContext("sink", "0" * 16, generation=1, epoch=0, part=None, attempt=0)
    return sink(address).bind(context).build("sink", 0, 1)


def _ours(address: str, body: bytes) -> None:
    from outfall.s3.upload import Senders, Upload

    senders = Senders(CONCURRENCY)
    upload = Upload(sink(address).store, senders, "out/ours", lambda what: None)
    view = memoryview(body)
    for start in range(0, len(body), MB):
        upload.write([pa.py_buffer(view[start : start + MB])])
    upload.end()
    staged = upload.staged(1)
    senders.close()
    _committed(address, [staged])


def _boto(address: str, body: bytes) -> None:
    config = TransferConfig(
        multipart_threshold=PART_SIZE, multipart_chunksize=PART_SIZE, max_concurrency=CONCURRENCY,
        preferred_transfer_client="classic",
    )  # fmt: skip
    client = sink(address).store.access.client()
    client.upload_fileobj(io.BytesIO(body), "bucket", "out/boto", Config=config)


def _encoded(address: str, batch: pa.RecordBatch, count: int) -> None:
    writer = _writer(address)
    for _ in range(count):
        writer.write_record_batch(batch)
    _committed(address, writer.prepare_commit())
    writer.close()


def _commit(address: str, count: int) -> float:
    parts = (UploadedPart(number=1, etag='"d41d8cd98f00b204e9800998ecf8427e"'),)
    staged = [
        StagedObject(bucket="bucket", key=f"out/{n}", id="i", size=1, rows=1, upload_id="u", parts=parts)
        for n in range(count)
    ]
    committer = sink(address).create_committer(CommitterInitContext("sink", "0" * 16, 1, 0))
    committer.commit([])  # writes the record, which is not part of the measured completion
    begun = time.perf_counter()
    committer.commit([CommitRequest(each) for each in staged])
    return time.perf_counter() - begun


def _committed(address: str, staged: list[StagedObject]) -> None:
    requests = [CommitRequest(each) for each in staged]
    sink(address).create_committer(CommitterInitContext("sink", "0" * 16, 1, 0)).commit(requests)
    if any(request.outcome.kind != "committed" for request in requests):
        raise RuntimeError(f"not committed: {requests[0].outcome}")


def main() -> None:
    """Run both parts, print their tables and keep their results."""
    given = parse(__doc__ or "", DEFAULT, sys.argv[1:])
    finish(uploads(given))
    finish(completions(given))


if __name__ == "__main__":
    main()
