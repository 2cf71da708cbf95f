"""Whole files in object stores and in HDFS."""

from __future__ import annotations

import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outfall.capabilities import CommitRequest, Guarantee
from outfall.capability_checks import check_sink, resolve
from outfall.errors import (
    CommitRefusedError,
    ConfigurationError,
    LostCommittableError,
    TransientError,
)
from outfall.file import FileSink, sink_from_options
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import WholeDriver, rows
from tests.unit.support.remote_target import Hdfs, Memory, Place, remote, worker

NAMES = ("publishing", "copied", "published")
pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture
def driver(place: Place) -> WholeDriver:
    return WholeDriver(remote(place))


def test_a_url_makes_a_remote_sink_that_survives_pickling(place: Place) -> None:
    sink = remote(place)
    assert worker(sink).location.url() == place.url
    back = pickle.loads(pickle.dumps(sink))
    assert back.options == sink.options
    assert back.target() == place.url
    check_sink(sink)
    assert resolve(sink).guarantee() is Guarantee.EXACTLY_ONCE


@pytest.mark.parametrize(
    ("url", "requirement"),
    [
        ("hdfs://n/out", "namenode"),
        ("memory://out", "one process"),
        ("s3://b/out", "copies"),
        ("abfs://c/out", "copies"),
    ],
)
def test_what_a_filesystem_must_do_is_stated(url: str, requirement: str) -> None:
    assert requirement in resolve(FileSink(url)).requirements()[0]


def test_urls_are_spelled_alike_and_may_come_as_options() -> None:
    assert FileSink("S3A://bucket//a/./b/").target() == "s3://bucket/a/b"
    assert FileSink("hdfs:///a/../b").target() == "hdfs:///b"
    assert FileSink("hdfs://namenode:8020/a").target() == "hdfs://namenode:8020/a"
    assert FileSink("s3://bucket/../../a").target() == "s3://bucket/a"
    assert sink_from_options({"path": "gcs://bucket/a"}).target() == "gs://bucket/a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "s3://key:secret@bucket/a"}, "contains credentials"),
        ({"path": "s3a://AKIA:se/secret@bucket/a"}, "contains credentials"),
        ({"path": "s3:/AKIA:secret@bucket/a"}, "has no '//'"),
        ({"path": "https://AKIA:se/secret@bucket/a"}, "is not supported"),
        ({"path": "s3://bucket/a?x=1"}, "contains credentials"),
        ({"path": "s3:///a"}, "names no bucket"),
        ({"path": "hdfs:/a"}, r"has no '//'"),
        ({"path": "ftp://host/a"}, "is not supported"),
        ({"path": "s3://bucket/a", "parts": 3}, "object store"),
    ],
)
def test_urls_that_will_not_do_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        FileSink(**options)
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **options: Any) -> Any:
        raise ImportError("no module")

    monkeypatch.setattr(fsspec, "url_to_fs", missing)
    with pytest.raises(ImportError, match="pip install gcsfs"):
        WholeDriver(FileSink("gs://bucket/a")).begin()


def test_rows_are_invisible_until_their_commit(driver: WholeDriver, place: Place, scratch: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1, 2))
    assert place.visible() == {}
    driver.commit(staged)
    assert place.ids() == [1, 2]
    assert place.hidden() == []
    assert os.listdir(scratch) == []


def test_a_commit_that_is_repeated_changes_nothing(driver: WholeDriver, place: Place) -> None:
    driver.begin()
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    driver.commit(staged)
    before = place.everything()
    again = driver.commit(staged)
    assert [request.outcome.kind for request in again] == ["already committed"] * 2
    assert place.everything() == before


@pytest.mark.parametrize(
    "step",
    [
        "file: record advanced",
        *(f"file: {name}#{k}" for name in ("publishing", "copied", "published") for k in (1, 2, 3)),
    ],
)
def test_a_driver_killed_in_commit_k_of_n_publishes_the_rest_later(
    driver: WholeDriver, place: Place, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.file.stores.remote.RemoteStore.parallel", 1)
    if isinstance(place, Hdfs) and "copied" in step:
        pytest.skip("a rename has no half")
    driver.begin()
    staged = [file for index in range(3) for file in driver.stage(rows(index), worker_index=index)]
    with crash_at(step) as seen:
        driver.commit(staged)
    assert "file: publications synced" not in seen
    driver.commit(staged)
    assert place.ids() == [0, 1, 2]
    assert place.hidden() == []


@pytest.mark.parametrize("step", ["file: writing", "file: written", "file: syncing", "file: synced", "file: staged"])
def test_a_killed_attempt_shows_nothing_and_is_cleaned_up(driver: WholeDriver, place: Place, step: str) -> None:
    driver.begin()
    with crash_at(step) as seen:
        driver.stage(rows(1))
    assert seen[-1] == step
    driver.run(rows(1))
    assert place.ids() == [1]
    assert place.hidden() == []


def test_many_files_are_published_side_by_side(driver: WholeDriver, place: Place) -> None:
    driver.run(*(rows(index) for index in range(40)))
    assert sorted(place.ids()) == list(range(40))


def test_an_attempt_that_fails_takes_its_files_away(driver: WholeDriver, place: Place, scratch: Path) -> None:
    driver.begin()
    part = driver.file()
    part.write_batch(rows(1))
    part.close()
    assert place.hidden() == []
    assert os.listdir(scratch) == []


def test_the_scratch_space_is_sparks_where_there_is_one(
    driver: WholeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "blockmgr"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},/elsewhere")
    driver.begin()
    part = driver.file()
    part.write_batch(rows(1))
    part.prepare_commit()
    assert len(os.listdir(local)) == 1
    part.close()
    assert os.listdir(local) == []


def test_an_upload_that_fails_fails_the_attempt(driver: WholeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.begin()
    part = driver.file()
    part.write_batch(rows(1))

    def fail(*_: Any) -> None:
        raise OSError("reset by peer")

    monkeypatch.setattr(type(worker(driver.sink).store._fs._filesystem), "put_file", fail)
    with pytest.raises(TransientError, match=r"staging .*reset by peer"):
        part.prepare_commit()


def test_what_is_uploaded_leaves_the_scratch_space_at_once(place: Place, scratch: Path) -> None:
    driver = WholeDriver(remote(place, roll_bytes=1))
    driver.begin()
    part = driver.file()
    for number in range(3):
        part.write_batch(rows(number))
    assert [path for path in scratch.rglob("*") if path.is_file()] == []  # the third is in memory still
    assert len(place.hidden()) == 2
    part.close()


def test_a_copy_that_is_not_whole_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Memory(uuid.uuid4().hex)
    driver = WholeDriver(remote(place))
    driver.begin()
    staged = driver.stage(rows(1))

    def copy(self: Any, source: str, target: str) -> None:
        self.pipe_file(target, self.cat_file(source)[:3])

    monkeypatch.setattr(MemoryFileSystem, "cp_file", copy)
    with pytest.raises(TransientError, match="has 3 bytes"):
        driver.commit(staged)
    assert place.hidden() != []


def test_a_lost_file_is_found_before_anything_is_published(driver: WholeDriver, place: Place) -> None:
    driver.begin()
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    place.remove(f"_outfall/staging/{staged[1].name}")
    requests = driver.commit(staged)
    assert [request.outcome.kind for request in requests] == ["committed", "lost"]


def test_a_published_file_of_another_length_is_not_ours(driver: WholeDriver, place: Place) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    place.put(staged[0].name, b"something else")
    (request,) = driver.commit(staged)
    assert isinstance(request.outcome.error, CommitRefusedError)
    assert place.everything()[staged[0].name] == b"something else"


def test_revoked_files_can_never_be_published(driver: WholeDriver, place: Place) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    committer: Any = driver.sink.create_committer(driver.writer())  # has the fields that are read
    requests = [CommitRequest(file) for file in staged]
    committer.revoke(requests)
    assert place.hidden() == []
    assert [request.outcome.kind for request in driver.commit(staged)] == ["lost"]


def test_what_is_published_cannot_be_revoked(driver: WholeDriver) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    driver.commit(staged)
    committer: Any = driver.sink.create_committer(driver.writer())  # has the fields that are read
    with pytest.raises(LostCommittableError, match="already published"):
        committer.revoke([CommitRequest(file) for file in staged])


def test_the_engine_writes_epochs_and_replays_none(place: Place, tmp_path: Path) -> None:
    sink = remote(place, format="csv", compression="gzip")
    local = LocalDriver(sink, str(tmp_path / "rec"))
    for epoch in range(3):
        local.run_epoch(epoch, [rows(epoch, epoch + 10), rows(epoch + 20)])
    again = LocalDriver(sink, str(tmp_path / "rec"))
    assert again.run_epoch(2, [rows(99)]).skipped
    assert len(place.visible()) == 6
    assert place.hidden() == []


class ClientError(Exception):
    """What a store's own client raises: no OSError."""


class NoCredentialsError(Exception):
    """As botocore's."""

    __module__ = "botocore.exceptions"


CALLS: dict[str, tuple[str, Any]] = {
    "connection": ("pipe_file", lambda driver: driver.sink.check_connection()),
    "check": ("info", lambda driver: driver.check()),
    "open": ("pipe_file", lambda driver: driver.begin()),
    "task": ("cat_file", lambda driver: driver.file()),
    "stage": ("put_file", lambda driver: (driver.begin(), driver.stage(rows(1)))),
    "publish": ("cp_file", lambda driver: (driver.begin(), driver.commit(driver.stage(rows(1))))),
    "clean_up": ("ls", lambda driver: driver.clean_up()),
}


@pytest.mark.parametrize("doing", CALLS)
@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (ClientError("refused"), TransientError, "ClientError: refused.*up and reachable"),
        (NoCredentialsError("none"), ConfigurationError, "NoCredentialsError: none.*provide credentials"),
        (OSError("gone"), TransientError, "gone"),
        (TypeError("ours"), TypeError, "ours"),
    ],
    ids=["client", "credentials", "system", "mistake"],
)
def test_what_a_stores_client_raises_is_explained(
    doing: str, raised: Exception, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WholeDriver(remote(Memory(uuid.uuid4().hex), on_existing="resume"))
    method, call = CALLS[doing]

    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(MemoryFileSystem, method, fail)
    with pytest.raises(kind, match=text):
        call(driver)


def test_a_client_that_cannot_be_made_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no account")

    monkeypatch.setattr(fsspec, "url_to_fs", fail)
    with pytest.raises(ConfigurationError, match=r"ValueError: no account.*provide credentials"):
        FileSink("az://container/x").check_connection()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.file.whole.sink._PATIENCE", 0.0)
