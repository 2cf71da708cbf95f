"""What a real S3 server denies by a policy or keeps by an object lock: SeaweedFS, and each sink that writes there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from outfall.delta import DeltaSink
from outfall.errors import TargetError
from outfall.file import FileSink
from outfall.iceberg import IcebergSink
from outfall.recovery import CheckpointRecoveryConfig
from outfall.s3 import S3Sink
from outfall.testing import LocalDriver
from tests.integration.support.s3 import S3, seaweedfs

pytestmark = pytest.mark.thorough

COLUMNS = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as patch, seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        for name, value in server.s3.environment.items():
            patch.setenv(name, value)
        # Kept with the address that the environment had before, and for other tests with this one.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield server.s3
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def bucket(s3: S3) -> str:
    name = f"lake-{uuid.uuid4().hex}"
    s3.client().create_bucket(Bucket=name)
    return name


def delta(s3: S3, bucket: str, _: Path) -> Any:
    options = s3.environment | {"AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    sink = DeltaSink(f"s3://{bucket}/t", create_table="if_missing", storage_options=options)
    sink.check_schema(COLUMNS)
    sink.create(COLUMNS)
    return sink


def iceberg(s3: S3, bucket: str, folder: Path) -> Any:
    options = {
        "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{bucket}",
        "s3.endpoint": s3.endpoint, "s3.access-key-id": s3.key, "s3.secret-access-key": s3.secret,
        "s3.region": "us-east-1",
    }  # fmt: skip
    catalog = SqlCatalog("c", **options)
    catalog.create_namespace("n")
    catalog.create_table("n.t", COLUMNS)
    return IcebergSink("n.t", catalog="c", catalog_options=options)


def file(_: S3, bucket: str, __: Path) -> Any:
    return FileSink(f"s3://{bucket}/out")


def objects(_: S3, bucket: str, __: Path) -> Any:
    return S3Sink(bucket, prefix="out/")


def ids(sink: Any, s3: S3, bucket: str) -> list[int]:
    if isinstance(sink, DeltaSink):
        table = sink.options.place.load()
        assert table is not None
        rows = pa.table(table.scan().read_all())
    elif isinstance(sink, IcebergSink):
        found = sink.catalogue.load("n.t")
        assert found is not None
        rows = found.scan().to_arrow()
    else:
        data = s3.objects(bucket, "out/").items()
        lines = [line for name, text in data if not name.startswith("_") for line in text.splitlines()]
        return sorted(json.loads(line)["id"] for line in lines)
    return sorted(rows["id"].to_pylist())


def deny(s3: S3, bucket: str, action: str, below: str = "*") -> None:
    place = f"arn:aws:s3:::{bucket}" + ("" if "Bucket" in action else f"/{below}")
    denied = {"Effect": "Deny", "Principal": "*", "Action": [action], "Resource": [place]}
    policy = {"Version": "2012-10-17", "Statement": [denied]}
    s3.client().put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


@pytest.mark.parametrize(
    ("make", "action", "below"),
    [
        (delta, "s3:PutObject", "t/_delta_log/*"),
        (delta, "s3:PutObject", "t/outfall/*"),
        (delta, "s3:GetObject", "*"),
        (delta, "s3:ListBucket", "*"),
        (iceberg, "s3:PutObject", "*.avro"),
        (iceberg, "s3:PutObject", "*.metadata.json"),
        (iceberg, "s3:GetObject", "*"),
        (file, "s3:PutObject", "*"),
        (file, "s3:GetObject", "*"),
        (file, "s3:ListBucket", "*"),
        (objects, "s3:PutObject", "*"),
    ],
)
def test_a_denied_request_ends_the_query_with_the_missing_right_and_loses_nothing(
    s3: S3, bucket: str, tmp_path: Path, make: Callable[[S3, str, Path], Any], action: str, below: str
) -> None:
    sink = make(s3, bucket, tmp_path)
    LocalDriver(sink, str(tmp_path / "log")).run_epoch(0, [[{"id": 0}]])
    deny(s3, bucket, action, below)
    with pytest.raises(TargetError, match=rf"{bucket}.*What to do: grant {action}"):
        LocalDriver(sink, str(tmp_path / "log")).run_epoch(1, [[{"id": 1}]])
    s3.client().delete_bucket_policy(Bucket=bucket)
    LocalDriver(sink, str(tmp_path / "log")).run_epoch(1, [[{"id": 1}]])
    assert ids(sink, s3, bucket) == [0, 1]


@pytest.mark.parametrize("make", [delta, iceberg, file, objects])
def test_an_object_lock_stops_no_epoch(s3: S3, tmp_path: Path, make: Callable[[S3, str, Path], Any]) -> None:
    """A bucket with a lock has versions: what replaces or deletes an object leaves its old version there."""
    bucket = f"locked-{uuid.uuid4().hex}"
    client = s3.client()
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    sink = make(s3, bucket, tmp_path)
    log = CheckpointRecoveryConfig(f"s3://{bucket}/log")
    for epoch in range(3):
        LocalDriver(sink, log).run_epoch(epoch, [[{"id": epoch}]])
    assert ids(sink, s3, bucket) == [0, 1, 2]
