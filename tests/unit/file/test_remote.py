"""Whole files in object stores and in HDFS."""

from __future__ import annotations

import os
import pickle
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outfall.capabilities import CommitRequest, Guarantee
from outfall.capability_checks import check_sink, guarantee_of, requirements_of
from outfall.errors import (
    CommitRefusedError,
    ConfigurationError,
    FencedError,
    LostCommittableError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    UnsharedTargetError,
)
from outfall.file import FileSink, sink_from_options
from outfall.file.whole.sink import RemoteWholeFiles
from outfall.target_record import TargetRecord
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import OTHERS, WholeDriver, meanwhile, rows
from tests.unit.support.remote_target import Hdfs, Memory, Place, hdfs_on_disk

NAMES = ("publishing", "copied", "published")


@pytest.fixture(params=["memory", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield Memory(uuid.uuid4().hex)
        return
    with hdfs_on_disk():
        yield Hdfs(tmp_path / "out")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where attempts keep files until they are uploaded."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def remote(place: Place, **options: Any) -> FileSink:
    return FileSink(place.url, **options)


def worker(sink: FileSink) -> RemoteWholeFiles:
    assert isinstance(sink.worker, RemoteWholeFiles)
    return sink.worker


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
    assert guarantee_of(sink) is Guarantee.EXACTLY_ONCE


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
    assert requirement in requirements_of(FileSink(url))[0]


def test_urls_are_spelled_alike_and_may_come_as_options() -> None:
    assert FileSink("S3A://bucket//a/./b/").target() == "s3://bucket/a/b"
    assert FileSink("hdfs:///a/../b").target() == "hdfs:///b"
    assert FileSink("hdfs://namenode:8020/a").target() == "hdfs://namenode:8020/a"
    assert FileSink("s3://bucket/../../a").target() == "s3://bucket/a"
    assert sink_from_options({"path": "gcs://bucket/a"}).target() == "gs://bucket/a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "s3://key:secret@bucket/a"}, "holds credentials"),
        ({"path": "s3a://AKIA:se/secret@bucket/a"}, "holds credentials"),
        ({"path": "s3:/AKIA:secret@bucket/a"}, "has no '//'"),
        ({"path": "https://AKIA:se/secret@bucket/a"}, "is not supported"),
        ({"path": "s3://bucket/a?x=1"}, "holds credentials"),
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
        "file: marker advanced",
        *(f"file: {name}#{k}" for name in ("publishing", "copied", "published") for k in (1, 2, 3)),
    ],
)
def test_a_driver_killed_in_commit_k_of_n_publishes_the_rest_later(
    driver: WholeDriver, place: Place, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.file.storage.remote.RemoteStore.parallel", 1)
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
def test_a_killed_attempt_leaves_nothing_visible_and_is_swept(driver: WholeDriver, place: Place, step: str) -> None:
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
    assert [request.outcome.kind for request in requests] == ["unsignalled", "lost"]


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
    committer: Any = driver.sink.create_committer(driver.writer())  # type: ignore[arg-type] # has the fields that are read
    requests = [CommitRequest(file) for file in staged]
    committer.revoke(requests)
    assert place.hidden() == []
    assert [request.outcome.kind for request in driver.commit(staged)] == ["lost"]


def test_what_is_published_cannot_be_revoked(driver: WholeDriver) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    driver.commit(staged)
    committer: Any = driver.sink.create_committer(driver.writer())  # type: ignore[arg-type] # has the fields that are read
    with pytest.raises(LostCommittableError, match="published already"):
        committer.revoke([CommitRequest(file) for file in staged])


# --- first contact, and restored checkpoints


def test_first_contact_with_data_is_refused_unless_told(place: Place) -> None:
    place.put("deep/old.jsonl", b'{"id":1}\n')
    before = place.everything()
    with pytest.raises(TargetNotEmptyError, match=r"old\.jsonl"):
        WholeDriver(remote(place)).begin()
    assert place.everything() == before
    WholeDriver(remote(place, on_existing="resume")).run(rows(2))
    assert sorted(place.ids()) == [1, 2]


def test_overwriting_deletes_what_is_there_once_and_stops_the_query_that_wrote_it(place: Place) -> None:
    first = WholeDriver(remote(place), OTHERS)
    first.run(rows(1))
    second = WholeDriver(remote(place, on_existing="overwrite"))
    second.run(rows(2))
    second.run(rows(3))
    assert place.ids() == [2, 3]
    with pytest.raises(TargetLostError, match="overwritten"):
        first.begin()


def test_a_query_whose_directory_is_overwritten_while_it_publishes_takes_its_files_back(place: Place) -> None:
    first = WholeDriver(remote(place))
    first.begin()
    staged = [file for index in range(3) for file in first.stage(rows(index), worker_index=index)]
    second = WholeDriver(remote(place, on_existing="overwrite"), incarnation=OTHERS)
    with (
        meanwhile("file: marker advanced", lambda: second.run(rows(100))),
        pytest.raises(TargetLostError, match="overwritten"),
    ):
        first.commit(staged)
    assert place.ids() == [100]


@pytest.mark.parametrize("on_existing", ["error", "resume"])
def test_a_directory_of_sparks_own_streaming_sink_is_refused(place: Place, on_existing: str) -> None:
    place.put("_spark_metadata/0", b"v1")
    driver = WholeDriver(remote(place, on_existing=on_existing))
    with pytest.raises(TargetNotEmptyError, match=r"holds _spark_metadata.*would not be seen"):
        driver.check()


def test_overwriting_deletes_what_spark_goes_by_too(place: Place) -> None:
    for name in ("_spark_metadata/0", "_spark_metadata/9.compact", "_SUCCESS", "_metadata", "old.jsonl"):
        place.put(name, b"1")
    WholeDriver(remote(place, on_existing="overwrite")).run(rows(2))
    assert {name.partition("/")[0] for name in place.everything() if name.startswith("_")} == {"_outfall"}


def test_a_query_that_was_overwritten_while_it_wrote_publishes_nothing(place: Place) -> None:
    first = WholeDriver(remote(place), OTHERS)
    first.begin()
    staged = first.stage(rows(1))
    WholeDriver(remote(place, on_existing="overwrite")).run(rows(2))
    with pytest.raises(TargetLostError):
        first.commit(staged)
    assert place.ids() == [2]


def test_of_two_queries_that_come_at_the_same_moment_the_later_is_refused_and_can_come_again(place: Place) -> None:
    first, second = WholeDriver(remote(place), OTHERS), WholeDriver(remote(place))
    with (
        meanwhile("file: opening", first.begin),
        pytest.raises(TargetNotEmptyError, match="another query"),
    ):
        second.begin()
    assert [path for path in place.everything() if path.endswith(".json")] == [f"_outfall/{OTHERS}.json"]
    first.commit(first.stage(rows(1)))
    assert place.ids() == [1]
    with pytest.raises(TargetNotEmptyError):
        second.begin()


def test_a_driver_that_died_before_it_looked_for_others_looks_later(place: Place) -> None:
    ours = WholeDriver(remote(place))
    with crash_at("file: marker created"):
        ours.begin()
    WholeDriver(remote(place, on_existing="resume"), OTHERS).run(rows(1))
    with pytest.raises(TargetNotEmptyError):
        ours.begin()


def test_an_older_driver_that_wakes_while_opening_deletes_nothing_of_the_newer(place: Place) -> None:
    place.put("old.jsonl", b'{"id":1}\n')
    older = WholeDriver(remote(place, on_existing="overwrite"))

    def newer() -> None:
        older.restored_copy(remote(place, on_existing="overwrite")).run(rows(2))

    with meanwhile("file: opening", newer), pytest.raises(FencedError, match="a newer driver"):
        older.begin()
    assert place.ids() == [2]


def test_a_target_that_lost_our_marker_is_refused(driver: WholeDriver, place: Place) -> None:
    driver.run(rows(1))
    for path in list(place.everything()):
        place.remove(path)
    with pytest.raises(TargetLostError, match="epoch 0"):
        driver.begin()


def test_a_restored_checkpoint_is_refused_or_the_later_epochs_are_taken_back(driver: WholeDriver, place: Place) -> None:
    driver.run(rows(1))
    copy = driver.restored_copy(remote(place))
    truncating = driver.restored_copy(remote(place, on_rewind="truncate"))
    driver.run(rows(2))
    driver.run(rows(3))
    with pytest.raises(TargetAheadError, match="epoch 2"):
        copy.begin()
    truncating.run(rows(20))
    assert place.ids() == [1, 20]


def test_what_a_newer_driver_published_meanwhile_is_not_taken_back(driver: WholeDriver, place: Place) -> None:
    driver.run(rows(1))
    older = driver.restored_copy(remote(place, on_rewind="truncate"))
    driver.run(rows(2))
    older.begin(open_target=False)  # it has seen epoch 1, and sleeps
    newer = older.restored_copy(remote(place, on_rewind="truncate"))
    newer.run(rows(20))
    newer.run(rows(30))
    with pytest.raises(FencedError, match="a newer driver"):
        older.open()
    assert place.ids() == [1, 20, 30]


def test_a_task_that_does_not_see_the_target_says_so(driver: WholeDriver, place: Place) -> None:
    driver.begin()
    place.remove(next(path for path in place.everything() if path.endswith(".json")))
    with pytest.raises(UnsharedTargetError, match="endpoint and credentials"):
        driver.file()


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"incarnation": "aa"}'])
def test_an_unreadable_marker_is_refused_and_not_written_anew(
    driver: WholeDriver, place: Place, content: bytes
) -> None:
    driver.run(rows(1))
    driver.begin()
    staged = driver.stage(rows(2))
    place.put(f"_outfall/{driver.incarnation}.json", content)
    for call in (driver.check, driver.open, lambda: driver.commit(staged)):
        with pytest.raises(TargetLostError, match="cannot be read"):
            call()
    assert place.everything()[f"_outfall/{driver.incarnation}.json"] == content
    assert place.ids() == [1]


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
    "check": ("cat_file", lambda driver: driver.check()),
    "open": ("pipe_file", lambda driver: driver.begin()),
    "task": ("cat_file", lambda driver: driver.file()),
    "stage": ("put_file", lambda driver: (driver.begin(), driver.stage(rows(1)))),
    "publish": ("cp_file", lambda driver: (driver.begin(), driver.commit(driver.stage(rows(1))))),
    "sweep": ("ls", lambda driver: driver.sweep()),
}


@pytest.mark.parametrize("doing", CALLS)
@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (ClientError("refused"), TransientError, "ClientError: refused.*up and reachable"),
        (NoCredentialsError("none"), ConfigurationError, "NoCredentialsError: none.*give credentials"),
        (OSError("gone"), TransientError, "gone"),
        (TypeError("ours"), TypeError, "ours"),
    ],
    ids=["client", "credentials", "system", "mistake"],
)
def test_what_a_stores_client_raises_is_explained(
    doing: str, raised: Exception, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WholeDriver(remote(Memory(uuid.uuid4().hex)))
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
    with pytest.raises(ConfigurationError, match=r"ValueError: no account.*give credentials"):
        FileSink("az://container/x").check_connection()


def test_a_directory_restored_from_an_older_copy_is_refused_and_left_as_it_is(
    driver: WholeDriver, place: Place
) -> None:
    driver.run(rows(1))
    copy = place.everything()
    driver.run(rows(2))
    for path in list(place.everything()):
        place.remove(path)
    for path, data in copy.items():
        place.put(path, data)
    with pytest.raises(TargetLostError, match="behind the recovery data"):
        driver.begin()
    assert place.everything() == copy


def test_epochs_without_files_are_no_loss(driver: WholeDriver, place: Place) -> None:
    driver.run(rows(1))
    driver.run()
    driver.run([])
    driver.run(rows(2))
    assert place.ids() == [1, 2]


def test_of_two_copies_of_a_log_one_is_refused(place: Place) -> None:
    first = WholeDriver(remote(place))
    first.run(rows(0))
    second = first.restored_copy(remote(place))
    first.append_begin()
    second.append_begin()

    def open_second() -> None:
        with pytest.raises(FencedError, match="the recovery data was copied"):
            second.open()

    with meanwhile("file: claimed", open_second):
        first.open()
    open_second()
    first.commit(first.stage(rows(1)))
    assert place.ids() == [0, 1]


def test_of_two_copies_of_a_log_the_one_that_looks_later_is_refused(
    place: Place,
) -> None:
    first = WholeDriver(remote(place))
    first.run(rows(0))
    second = first.restored_copy(remote(place))
    first.append_begin()
    second.append_begin()
    # The second has said so, and looks later.
    worker(remote(place)).store.claim(second.incarnation, TargetRecord(second.generation, second.token))
    with pytest.raises(FencedError, match="the recovery data was copied"):
        first.open()
    second.open()
    second.commit(second.stage(rows(2)))
    with pytest.raises(TargetAheadError, match="another copy of it is in use"):
        first.check()
    assert place.ids() == [0, 2]


def test_of_two_queries_that_overwrite_at_the_same_moment_one_goes_on_at_most(place: Place) -> None:
    place.put("old.jsonl", b'{"id":1}\n')
    first = WholeDriver(remote(place, on_existing="overwrite"))
    second = WholeDriver(remote(place, on_existing="overwrite"), OTHERS)
    with (
        meanwhile("file: marker created", lambda: second.run(rows(2))),
        pytest.raises(TargetNotEmptyError, match="another query overwrites"),
    ):
        first.begin()
    assert place.ids() == [2]
    with pytest.raises(TargetLostError):
        second.begin()


def test_overwriting_that_was_killed_is_finished_by_the_next_run(place: Place) -> None:
    place.put("old.jsonl", b'{"id":1}\n')
    driver = WholeDriver(remote(place, on_existing="overwrite"))
    with crash_at("file: others stopped"):
        driver.begin()
    driver.run(rows(2))
    assert place.ids() == [2]


@pytest.mark.parametrize("on_existing", ["error", "overwrite"])
@pytest.mark.parametrize("ours", ["above", "below"])
def test_a_directory_within_another_querys_or_around_it_is_refused(place: Place, on_existing: Any, ours: str) -> None:
    inner, outer = f"{place.url}/in/ner", place.url
    WholeDriver(FileSink(inner if ours == "above" else outer), OTHERS).begin()
    before = place.everything()
    mine = WholeDriver(FileSink(outer if ours == "above" else inner, on_existing=on_existing))
    with pytest.raises(TargetNotEmptyError, match="one within the other"):
        mine.begin()
    assert place.everything() == before
