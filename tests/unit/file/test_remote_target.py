"""Whole files in object stores and in HDFS: whose the directory is, and what it still holds."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outfall.errors import (
    ConfigurationError,
    FencedError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    UnsharedTargetError,
)
from outfall.file import FileSink
from outfall.file.stores.remote import RemoteStore
from outfall.store_errors import Operation, store_error
from outfall.target_record import TargetRecord
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import OTHERS, WholeDriver, meanwhile, rows
from tests.unit.support.remote_target import Memory, Place, remote, worker

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture
def driver(place: Place) -> WholeDriver:
    return WholeDriver(remote(place))


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
        meanwhile("file: record advanced", lambda: second.run(rows(100))),
        pytest.raises(TargetLostError, match="overwritten"),
    ):
        first.commit(staged)
    assert place.ids() == [100]


@pytest.mark.parametrize("on_existing", ["error", "resume"])
def test_a_directory_of_sparks_own_streaming_sink_is_refused(place: Place, on_existing: str) -> None:
    place.put("_spark_metadata/0", b"v1")
    driver = WholeDriver(remote(place, on_existing=on_existing))
    with pytest.raises(TargetNotEmptyError, match=r"contains _spark_metadata.*would not see new rows"):
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
        pytest.raises(TargetNotEmptyError, match="Another query"),
    ):
        second.begin()
    assert [path for path in place.everything() if path.endswith(".json")] == [f"_outfall/{OTHERS}.json"]
    first.commit(first.stage(rows(1)))
    assert place.ids() == [1]
    with pytest.raises(TargetNotEmptyError):
        second.begin()


def test_a_driver_that_died_before_it_looked_for_others_looks_later(place: Place) -> None:
    ours = WholeDriver(remote(place))
    with crash_at("file: record created"):
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


def test_a_store_that_is_away_when_a_task_begins_is_waited_for(
    driver: WholeDriver, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception] = [TimeoutError("the store does not answer"), OSError("connection refused")]

    def has_record(self: RemoteStore, incarnation: str) -> bool:
        if answers:
            raise store_error(answers.pop(), "s3", Operation.READ)
        return known(self, incarnation)

    known = RemoteStore.has_record
    driver.begin()
    monkeypatch.setattr(RemoteStore, "has_record", has_record)
    driver.stage(rows(1))
    answers += [OSError("not reached"), PermissionError("AccessDenied")]
    with pytest.raises(TargetError, match="AccessDenied"):
        driver.stage(rows(1))
    assert len(answers) == 1


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
        with pytest.raises(FencedError, match="The recovery data was copied"):
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
    with pytest.raises(FencedError, match="The recovery data was copied"):
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
        meanwhile("file: record created", lambda: second.run(rows(2))),
        pytest.raises(TargetNotEmptyError, match="was opened by another query at the same moment"),
    ):
        first.begin()
    assert place.ids() == [2]
    second.run(rows(3))
    assert place.ids() == [2, 3]


def test_a_late_driver_of_the_first_epoch_takes_no_epoch_out_of_the_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = WholeDriver(remote(place))
    late.begin(open_target=False)
    newer = late.restored_copy(remote(place))
    listed, waiting = RemoteStore.claims, [lambda: newer.run(rows(1))]

    def claims(store: RemoteStore, incarnation: str) -> list[TargetRecord]:
        found = listed(store, incarnation)
        # The newer driver takes over after the late one has looked for others: both have found none.
        if waiting and any(begun.token == late.token for begun in found):
            waiting.pop()()
        return found

    monkeypatch.setattr(RemoteStore, "claims", claims)
    late.open()
    with pytest.raises(FencedError):
        late.commit(late.stage(rows(2)))
    newer.run(rows(3))
    assert place.ids() == [1, 3]


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
    with pytest.raises(TargetNotEmptyError, match="inside or around the target"):
        mine.begin()
    assert place.everything() == before


def test_hdfs_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.delitem(sys.modules, "outfall.hdfs", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'outfall\[hdfs\]'"):
        LocalDriver(FileSink("hdfs://namenode:8020/out"), MemoryRecoveryConfig()).run_epoch(0, [[{"id": 1}]])


def test_hdfs_without_a_configuration_says_how_to_name_a_namenode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"HADOOP_CONF_DIR") as caught:
        LocalDriver(FileSink("hdfs://nobody/out"), MemoryRecoveryConfig()).run_epoch(0, [[{"id": 1}]])
    assert "\n" not in str(caught.value)


def test_a_folder_marker_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs and adlfs list an empty object that a console has made."""
    store = worker(remote(Memory("marked"))).store
    sizes = {"": 0, "p=a/": 0, "p=b": 0, "sub/deep": 0, "p=a/x.csv": 9, "p=a/empty.csv": 0, "p=a/data": 7}
    found = {f"/marked/out/{name}": {"size": size, "type": "file"} for name, size in sizes.items()}
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: found)
    assert list(store.files()) == ["p=a/x.csv", "p=a/empty.csv", "p=a/data"]


class ForbiddenError(Exception):
    """As adlfs passes it on: no PermissionError."""

    def __init__(self, code: str) -> None:
        super().__init__(f"This request is not authorized.\nErrorCode:{code}")
        self.error_code, self.status_code = code, 403


@pytest.mark.parametrize("code", ["AuthorizationPermissionMismatch", "AuthenticationFailed"])
def test_credentials_of_a_folder_may_begin_and_go_on(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Memory(f"folder-{code}")
    listed = MemoryFileSystem.ls

    def ls(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if not path.startswith(f"/folder-{code}/out"):
            raise ForbiddenError(code)
        return listed(self, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    driver = WholeDriver(remote(place))
    driver.run(rows(1))
    driver.run(rows(2))
    assert place.ids() == [1, 2]


def test_what_may_pass_above_the_target_is_no_missing_right(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Memory("above")
    listed = MemoryFileSystem.ls

    def ls(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if not path.startswith("/above/out"):
            raise ConnectionResetError("reset")
        return listed(self, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    with pytest.raises(TransientError, match="reset"):
        WholeDriver(remote(place)).begin()


def test_no_bucket_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the clients of object stores do for a directory in a bucket that does not exist."""
    made: list[str] = []
    monkeypatch.setattr(MemoryFileSystem, "makedirs", lambda _, path, **__: made.append(path))
    WholeDriver(remote(Memory("unmade"))).begin()
    assert "/unmade/out/_outfall" not in made
