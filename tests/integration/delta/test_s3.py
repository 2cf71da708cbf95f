"""Tables in S3, on a server that keeps them on its own disk: SeaweedFS, which honours conditional puts."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from outfall.delta import DeltaSink
from outfall.errors import EpochAbandonedError, OutfallError, TargetError, TransientError
from outfall.tables import data_file
from outfall.testing import crash_at
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.duck import Duck
from tests.integration.support.s3 import S3, SeaweedFS, seaweedfs

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("seaweed")) as running:
        yield running


@pytest.fixture
def s3(server: SeaweedFS) -> S3:
    return server.s3


@pytest.fixture
def url(s3: S3) -> str:
    bucket = f"outfall-{uuid.uuid4().hex}"
    s3.client().create_bucket(Bucket=bucket)
    return f"s3://{bucket}/lake/t"


def options(s3: S3) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": s3.key,
        "AWS_SECRET_ACCESS_KEY": s3.secret,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def driver(s3: S3, url: str, log: Path, **more: Any) -> BatchDriver:
    given: dict[str, Any] = {"create_table": "if_missing", "partition_by": "day", "storage_options": options(s3)}
    return BatchDriver(DeltaSink(url, **given | more), str(log))


def rows(*ids: int, text: str = "x") -> pa.RecordBatch:
    return batch(id=pa.array(ids), day=["a b/%20" if each % 2 else None for each in ids], text=[text] * len(ids))


def objects(s3: S3, url: str) -> set[str]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return {name for name in s3.objects(bucket, f"{prefix}/") if not name.endswith("/")}


def test_epochs_arrive_once_and_nothing_is_left(s3: S3, url: str, tmp_path: Path, duck: Duck) -> None:
    duck.use(s3)
    writing = driver(s3, url, tmp_path / "log")
    noise = "".join(uuid.uuid4().hex for _ in range(200_000))  # more than one part of an upload
    writing.write(0, rows(1, 2, text=noise), rows(3))
    assert sorted(duck.delta(url, "id, day, length(text)")) == [
        (1, "a b/%20", len(noise)), (2, None, len(noise)), (3, "a b/%20", 1),
    ]  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        writing.write(1, rows(4), between=lambda: 1 // 0)
    with crash_at("table: committed"):
        driver(s3, url, tmp_path / "log").write(1, rows(4, 5))
    # Another process settles it: the commit took place.
    writing = driver(s3, url, tmp_path / "log", write_mode="overwrite_partitions")
    writing.write(1, rows(4, 5))
    writing.write(2, rows(7))
    assert sorted(duck.delta(url, "id")) == [(2,), (4,), (7,)]
    data = {name for name in objects(s3, url) if name.startswith("outfall/")}
    named = {
        action["path"] for version in range(1, _table(s3, url).version() + 1) for action in _added(s3, url, version)
    }
    assert data == named


def _added(s3: S3, url: str, version: int) -> list[dict[str, Any]]:
    table = DeltaTable(url, version=version, storage_options=options(s3))
    return [{"path": path} for path in pa.table(table.get_add_actions())["path"].to_pylist()]


def test_of_two_drivers_one_commits_on_a_version(s3: S3, url: str, tmp_path: Path) -> None:
    """Another writer commits between our load and our commit: the store lets only one have the version."""
    writing = driver(s3, url, tmp_path / "log")
    writing.write(0, rows(1))
    writing.write(
        1, rows(2), between=lambda: driver(s3, url, tmp_path / "other", on_existing="resume").write(0, rows(3))
    )
    assert sorted(pa.table(_table(s3, url).scan(["id"]).read_all())["id"].to_pylist()) == [1, 2, 3]
    assert _table(s3, url).version() == 3


def _table(s3: S3, url: str) -> DeltaTable:
    return DeltaTable(url, storage_options=options(s3))


def test_files_that_are_gone_have_the_epoch_written_anew(
    s3: S3, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "_FRESH", -1.0)
    driver(s3, url, tmp_path / "log").write(0, rows(1))
    with crash_at("table: committing"):
        driver(s3, url, tmp_path / "log").write(1, rows(2))
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    kept = {action["path"] for action in _added(s3, url, 1)}
    for name in objects(s3, url):
        if name.startswith("outfall/") and name not in kept:
            s3.client().delete_object(Bucket=bucket, Key=f"{prefix}/{name}")
    driver(s3, url, tmp_path / "log").write(1, rows(2))
    assert sorted(pa.table(_table(s3, url).scan(["id"]).read_all())["id"].to_pylist()) == [1, 2]


def test_files_that_a_vacuum_takes_within_an_epoch_have_it_written_anew(s3: S3, url: str, tmp_path: Path) -> None:
    """However recent they are: the log has the VACUUM."""
    writing = driver(s3, url, tmp_path / "log")
    writing.write(0, rows(1))

    def vacuum() -> None:
        table = _table(s3, url)
        assert table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    with pytest.raises(EpochAbandonedError, match="are missing"):
        writing.write(1, rows(2), between=vacuum)
    writing.write(1, rows(2))
    assert sorted(pa.table(_table(s3, url).scan(["id"]).read_all())["id"].to_pylist()) == [1, 2]


def test_the_connection_is_tried_and_nothing_stays(s3: S3, url: str) -> None:
    sink = DeltaSink(url, create_table="if_missing", storage_options=options(s3))
    assert "the table does not exist yet" in sink.check_connection()[0]
    sink.check_schema(rows(1).schema)
    sink.create(rows(1).schema)
    sink.create(rows(1).schema)  # another driver came first
    before = objects(s3, url)
    assert "can be created and deleted" in sink.check_connection()[1]
    assert objects(s3, url) == before


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret-0123"}, TargetError),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, TransientError),
    ],
    ids=["secret", "address"],
)
def test_a_store_that_does_not_let_us_in_is_told_without_secrets(
    s3: S3,
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wrong: dict[str, str],
    kind: type[OutfallError],
) -> None:
    given = options(s3) | {"max_retries": "0", "retry_timeout": "1s"} | wrong
    writing = driver(s3, url, tmp_path / "log", storage_options=given, retry_deadline="1 second")
    caplog.set_level(logging.DEBUG, logger="outfall")
    with pytest.raises(OutfallError) as refused:
        writing.write(0, rows(1))
    text = str(refused.value) + caplog.text + repr(refused.value.__cause__)
    assert type(refused.value) is kind
    assert given["AWS_SECRET_ACCESS_KEY"] not in text
    assert "loading s3://" in text


def test_an_upsert_rewrites_files_of_another_writer_and_leaves_none_of_its_own(
    s3: S3, url: str, tmp_path: Path, duck: Duck
) -> None:
    duck.use(s3)
    theirs = pa.Table.from_batches([rows(1, 2, 3, 4)])
    write_deltalake(url, theirs, partition_by=["day"], storage_options=options(s3))
    keyed = {"write_mode": "upsert", "key_columns": "id", "delete_marker": "gone"}

    def some(*ids: int, gone: bool = False) -> pa.RecordBatch:
        return rows(*ids, text="new").append_column("gone", pa.array([gone] * len(ids)))

    with crash_at("table: merged"):
        driver(s3, url, tmp_path / "log", **keyed).write(0, some(1, 2, 5), some(4, gone=True))
    driver(s3, url, tmp_path / "log", **keyed).write(0, some(1, 2, 5), some(4, gone=True))
    driver(s3, url, tmp_path / "log", **keyed).write(1, some(7))
    assert sorted(duck.delta(url, "id, day, text")) == [
        (1, "a b/%20", "new"), (2, None, "new"), (3, "a b/%20", "x"), (5, "a b/%20", "new"), (7, "a b/%20", "new"),
    ]  # fmt: skip
    data = {name for name in objects(s3, url) if name.startswith("outfall/")}
    assert data == {
        action["path"] for version in range(1, _table(s3, url).version() + 1) for action in _added(s3, url, version)
    }
