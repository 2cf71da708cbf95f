"""A stand-in for Spark's own writer, and a sink whose rows it writes, for tests without Spark."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from outfall.capabilities import SupportsSparkWriter
from outfall.delegating_sink import DelegatingSink
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery import RecoveryConfig
from outfall.sinks import StatelessSinkPartition

NAME = "part-{:05d}-0d6a3b4c-7e4c-4a8e-9a3e-3f1f5b0c9d11-c000{}"
"""The name that Spark gives the n-th file, with its suffix."""

_ADDRESS = re.compile(r"^\w+:(//[^/]*)?")
"""What is before the path in a URL. `urlsplit` keeps what it has parsed, which the check of memory would find."""


class Rows:
    """Leaves what Spark's writer leaves: files, their checksums, and the mark of its job. Nothing is synced.

    Files are Parquet, or JSON lines in place of all other formats.
    """

    def __init__(self, files: Mapping[str, Sequence[Any]], *, counted: int | None = None) -> None:
        """Take the rows of each file, or only their ids."""
        self._files = files
        self._counted = sum(map(len, files.values())) if counted is None else counted
        self.saved: list[tuple[str, str, dict[str, str], tuple[str, ...]]] = []
        self.checks = 0

    def save(self, url: str, *, format: str, options: Mapping[str, str], partition_by: Sequence[str] = ()) -> int:
        self.saved.append((url, format, dict(options), tuple(partition_by)))
        root = Path(_ADDRESS.sub("", url))
        for name, values in self._files.items():
            rows = [value if isinstance(value, dict) else {"id": value} for value in values]
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if format == "parquet":
                pq.write_table(pa.Table.from_pylist(rows, None if rows else pa.schema({"id": pa.int64()})), path)
            else:
                path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            (path.parent / f".{path.name}.crc").write_bytes(_checksums(path.read_bytes()))
        root.mkdir(parents=True, exist_ok=True)
        (root / "_SUCCESS").touch()
        return self._counted

    def run_on_executors(self, check: Callable[[], None]) -> None:
        self.checks += 1
        pickle.loads(pickle.dumps(check))()


class Cut(Rows):
    """The disk loses the end of each file after Spark's job."""

    def __init__(self, files: Mapping[str, Sequence[Any]], *, lost: int, checksums: bool = True) -> None:
        """Take how many bytes are lost, and whether the session has Hadoop's checksums."""
        super().__init__(files)
        self._lost = lost
        self._checksums = checksums

    def save(self, url: str, **given: Any) -> int:
        rows = super().save(url, **given)
        for path in Path(_ADDRESS.sub("", url)).rglob("part-*"):
            os.truncate(path, max(0, path.stat().st_size - self._lost))
            if not self._checksums:
                (path.parent / f".{path.name}.crc").unlink()
        return rows


def cut(root: Path, epoch: int = 0) -> None:
    """Remove the last byte of each file of an epoch below a directory."""
    for path in root.rglob(f"part-{epoch:010}-*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size - 1)


def run_epoch(sink: Any, recovery: RecoveryConfig, rows: Rows, epoch: int = 0) -> None:
    """Run an epoch of a driver whose rows Spark's writer encodes."""
    coordinator = EpochCoordinator(sink, "sink", recovery)
    try:
        ticket = coordinator.begin(epoch)
        if ticket is not None:
            task = EpochTask(sink, ticket, TaskIdentity(epoch, 0, 0))
            coordinator.finish(ticket, [task.run_by_spark(rows)])
    finally:
        coordinator.close()


def _checksums(data: bytes) -> bytes:
    """Return what Hadoop writes beside a file: the CRC-32 of each 512 bytes."""
    sums = (zlib.crc32(data[start : start + 512]) for start in range(0, len(data), 512))
    return b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", each) for each in sums)


class WrittenInPython(DelegatingSink):
    """A sink for Spark's own writer whose tasks get their rows in Python, and hand them to the stand-in."""

    def capabilities(self) -> Collection[type]:
        return {each for each in super().capabilities() if not issubclass(each, SupportsSparkWriter)}

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Collecting:
        return Collecting(self.delegate.build(step_id, worker_index, worker_count))


class Collecting(StatelessSinkPartition[Any]):
    """Writes the rows of a task at its end."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._values: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        self._values += values

    def prepare_commit(self) -> list[Any]:
        half = len(self._values) // 2
        files = {NAME.format(0, ".avro"): self._values[:half], NAME.format(1, ".avro"): self._values[half:]}
        self._writer.write_frame(Rows(files))
        return list(self._writer.prepare_commit())

    def close(self) -> None:
        self._writer.close()
