"""Which snapshots expire, and that a disk keeps what a commit names."""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from outfall.errors import ConfigurationError
from outfall.iceberg.expire import KEPT, to_expire
from outfall.iceberg.files import DURABLE_IO, CommitFiles, filesystem_of

HOUR = 3_600_000
NOW = 100 * HOUR


def metadata(count: int, refs: dict[str, Any], **properties: str) -> TableMetadata:
    """A table with as many snapshots, one an hour, numbered from 1, each the next one's parent."""
    snapshots = [
        {
            "snapshot-id": number, "sequence-number": number, "timestamp-ms": NOW - (count - number) * HOUR,
            "manifest-list": "x", "summary": {"operation": "append"}, "schema-id": 0,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
        }
        for number in range(1, count + 1)
    ]  # fmt: skip
    return TableMetadataUtil.parse_obj(
        {
            "format-version": 2, "table-uuid": str(uuid.uuid4()), "location": "/t", "last-sequence-number": count,
            "last-updated-ms": NOW, "last-column-id": 0, "current-schema-id": 0, "schemas": [Schema().model_dump()],
            "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
            "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}], "properties": properties,
            "snapshots": snapshots, "refs": {name: {"type": "branch", **ref} for name, ref in refs.items()},
            "current-snapshot-id": refs.get("main", {}).get("snapshot-id"),
        }
    )  # fmt: skip


MAIN = {"main": {"snapshot-id": 20}}


@pytest.mark.parametrize(
    ("known", "age", "kept"),
    [
        (metadata(20, MAIN), 10, range(10, 21)),
        (metadata(20, MAIN), 1, range(21 - KEPT, 21)),
        (metadata(20, MAIN, **{"history.expire.min-snapshots-to-keep": "8"}), 1, range(13, 21)),
        (metadata(20, MAIN, **{"history.expire.min-snapshots-to-keep": "1"}), 1, range(21 - KEPT, 21)),
        (metadata(20, {"main": {"snapshot-id": 20, "min-snapshots-to-keep": 7}}), 1, range(14, 21)),
        (metadata(20, {"main": {"snapshot-id": 20, "max-snapshot-age-ms": 12 * HOUR}}), 1, range(9, 21)),
        (metadata(20, MAIN | {"old": {"type": "tag", "snapshot-id": 3}}), 1, [3, *range(21 - KEPT, 21)]),
        (metadata(20, MAIN | {"b": {"snapshot-id": 8}}), 1, [*range(9 - KEPT, 9), *range(21 - KEPT, 21)]),
        (metadata(3, {"main": {"snapshot-id": 3}}), 1, range(1, 4)),
        (metadata(0, {}), 1, ()),
    ],
)
def test_what_is_old_and_kept_by_nothing_expires(known: TableMetadata, age: int, kept: range) -> None:
    every = {snapshot.snapshot_id for snapshot in known.snapshots}
    assert every - set(to_expire(known, timedelta(hours=age), NOW / 1000)) == set(kept)


def test_what_a_commit_writes_to_a_disk_is_synced_with_its_name_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = load_file_io({"py-io-impl": DURABLE_IO})
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with io.new_output(f"file://{tmp_path}/metadata/a.avro").create() as stream:
        stream.write(b"abc")
        assert stream.tell() == 3
    assert synced[-2:] == ["metadata/a.avro", "metadata"]
    assert io.new_input(f"{tmp_path}/metadata/a.avro").open().read() == b"abc"
    with pytest.raises(FileExistsError):
        io.new_output(f"file://{tmp_path}/metadata/a.avro").create()
    with io.new_output(f"file://{tmp_path}/metadata/a.avro").create(overwrite=True) as stream:
        stream.write(b"d")
    io.delete(f"file://{tmp_path}/metadata/a.avro")
    assert list((tmp_path / "metadata").iterdir()) == []


def test_a_commits_files_are_deleted_only_when_they_are_taken_back(tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.touch()
    io = CommitFiles(PyArrowFileIO())
    with io.new_output(f"{tmp_path}/mine").create() as stream:
        stream.write(b"x")
    io.delete(f"{tmp_path}/mine")
    io.delete(str(older))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    io.roll_back()
    assert list(tmp_path.iterdir()) == []


S3 = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "r", "s3.access-key-id": "a", "s3.secret-access-key": "b"}


def test_s3_is_reached_by_fsspec_where_pyiceberg_is_told_so() -> None:
    pytest.importorskip("s3fs")  # not among the oldest dependencies: users bring it
    filesystem, path = filesystem_of(FsspecFileIO(S3), "s3://bucket/x/data")
    assert (filesystem.type_name, path) == ("py::fsspec+('s3', 's3a')", "bucket/x/data")


def test_filesystems_are_those_of_pyiceberg_and_no_others(tmp_path: Path) -> None:
    location = f"file://{tmp_path}/data"
    for io in (PyArrowFileIO(), load_file_io({"py-io-impl": DURABLE_IO}), FsspecFileIO({})):
        filesystem, path = filesystem_of(io, location)
        assert (filesystem.type_name, path) == ("local", f"{tmp_path}/data")
    assert filesystem_of(PyArrowFileIO(S3), "s3://bucket/x/data")[1] == "bucket/x/data"
    with pytest.raises(ConfigurationError, match=r"py-io-impl\)\. .*What to do: omit py-io-impl"):
        filesystem_of(CommitFiles(PyArrowFileIO()), location)
