"""Whole files: staging, publishing and cleaning up, driven by hand."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import CommitRequest, Guarantee
from outfall.capability_checks import check_output_mode, check_sink, resolve
from outfall.errors import (
    CommitRefusedError,
    ConfigurationError,
    LostCommittableError,
    TransientError,
)
from outfall.file import FileSink
from outfall.file.stores.store import StagedFile
from outfall.file.whole.sink import LocalWholeFiles
from outfall.storage.names import AttemptName
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import (
    OTHERS,
    OURS,
    WholeDriver,
    committer,
    everything,
    ids,
    meanwhile,
    open_files,
    rows,
    staged_names,
    visible,
    whole,
)
from tests.unit.support.spark_writer import WrittenInPython


@pytest.fixture
def driver(out: Path) -> WholeDriver:
    return WholeDriver(whole(out))


def test_a_sink_without_parts_is_a_whole_one_and_survives_pickling(out: Path) -> None:
    sink = FileSink(out)
    back = pickle.loads(pickle.dumps(sink))
    assert type(sink) is type(back) is FileSink
    assert type(sink.delegate) is type(back.delegate) is LocalWholeFiles
    assert back.options == sink.options
    check_sink(sink)
    assert resolve(sink).guarantee() is Guarantee.EXACTLY_ONCE


@pytest.mark.parametrize("options", [{}, {"parts": 2}, {"path": "memory://out"}], ids=["whole", "growing", "remote"])
def test_what_a_user_writes_is_what_a_user_sees(out: Path, options: dict[str, Any]) -> None:
    sink = FileSink(**{"path": out, **options})
    assert type(sink) is FileSink
    assert "FileSink" in repr(sink)
    with pytest.raises(ConfigurationError, match="FileSink"):
        check_output_mode(resolve(sink), "complete")


def test_rows_are_invisible_until_their_commit(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1, 2))
    assert visible(out) == []
    driver.commit(staged)
    assert ids(out) == [1, 2]
    assert staged_names(out) == []
    assert [file.name for file in visible(out)] == [f"part-0000000000-00000-00000-{OURS}-g1-a0.jsonl"]
    assert staged[0].rows == 2
    assert staged[0].size == visible(out)[0].stat().st_size


def test_an_attempt_without_rows_stages_nothing(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    assert driver.stage([]) == []
    assert staged_names(out) == []
    driver.commit([])
    assert visible(out) == []


def test_a_commit_that_is_repeated_changes_nothing(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    driver.commit(staged)
    before = everything(out)
    again = driver.commit(staged)
    assert [request.outcome.kind for request in again] == ["already committed"] * 2
    assert everything(out) == before


@pytest.mark.parametrize(
    "step",
    ["file: record advanced", *(f"file: publish{end}#{k}" for end in ("ing", "ed") for k in (1, 2, 3))],
)
def test_a_driver_killed_in_commit_k_of_n_publishes_the_rest_later(driver: WholeDriver, out: Path, step: str) -> None:
    driver.begin()
    staged = [file for index in range(3) for file in driver.stage(rows(index), worker_index=index)]
    with crash_at(step) as seen:
        driver.commit(staged)
    assert "file: publications synced" not in seen
    driver.commit(staged)
    assert ids(out) == [0, 1, 2]


@pytest.mark.parametrize("step", ["file: writing", "file: written", "file: syncing", "file: synced", "file: staged"])
def test_a_killed_attempt_leaves_nothing_visible_and_is_cleaned_up(driver: WholeDriver, out: Path, step: str) -> None:
    driver.begin()
    with crash_at(step) as seen:
        driver.stage(rows(1))
    assert seen[-1] == step
    driver.run(rows(1))
    assert ids(out) == [1]
    assert staged_names(out) == []


def test_half_a_task_that_failed_is_never_published(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    failed = driver.file(attempt=1)
    failed.write_batch(rows(1))
    failed.close()
    driver.commit(driver.stage(rows(1, 2), attempt=2))
    assert ids(out) == [1, 2]


def test_a_task_that_failed_gives_its_space_back_at_once(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    failed = driver.file(attempt=1)
    failed.write_batch([{"s": "x" * 2_000_000}])
    assert [name[-8:] for name in staged_names(out)] == ["a1.jsonl"]
    failed.close()
    assert staged_names(out) == []


def test_a_file_that_is_handed_over_outlives_its_task(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    assert staged_names(out) == [staged[0].name]


def test_fewer_tasks_on_replay_leave_nothing_of_the_lost_attempt(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    for index in range(200):
        driver.stage(rows(index), worker_index=index)
    driver.run(list(rows(*range(100))), list(rows(*range(100, 200))))
    assert ids(out) == list(range(200))
    assert staged_names(out) == []
    for _ in range(50):
        driver.run(rows())
    driver.run(*[rows(1000 + index) for index in range(200)])
    assert len(ids(out)) == 400


def test_two_drivers_that_publish_the_same_record_at_once_do_it_once(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    other = driver.restored_copy(whole(out))
    with meanwhile("file: publishing", lambda: other.commit(staged)):
        requests = driver.commit(staged)
    assert {request.outcome.kind for request in requests} == {"already committed"}
    assert ids(out) == [1, 2]


def test_a_rename_between_two_looks_is_not_taken_for_a_foreign_file(
    driver: WholeDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    other = driver.restored_copy(whole(out))
    real = os.lstat
    looks: list[Any] = []

    def lstat(path: Any) -> os.stat_result:
        found = real(path)
        if not looks:
            looks.append(path)
            other.commit(staged)
        return found

    monkeypatch.setattr(os, "lstat", lstat)
    assert [request.outcome.kind for request in driver.commit(staged)] == ["already committed"]


def test_a_staged_file_that_is_gone_is_lost(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    (out / "_outfall" / "staging" / staged[0].name).unlink()
    requests = [CommitRequest(file) for file in staged]
    committer(driver).find_lost(requests)
    assert [request.outcome.kind for request in requests] == ["lost", "unsignalled"]
    assert visible(out) == []
    kinds = [request.outcome.kind for request in driver.commit(staged)]
    assert kinds == ["lost", "committed"]
    assert committer(driver).nothing_published([]) is False


@pytest.mark.parametrize("writer", ["outfall", "spark"])
@pytest.mark.parametrize("published", [False, True])
def test_a_file_of_another_length_is_refused(driver: WholeDriver, out: Path, writer: str, published: bool) -> None:
    if writer == "spark":
        driver.sink = WrittenInPython(FileSink(out, format="avro", writer="spark"))  # type: ignore[assignment]
    driver.begin()
    staged = driver.stage(rows(1))
    if published:
        driver.commit(staged)
    os.truncate((out if published else out / "_outfall" / "staging") / staged[0].name, 4)
    before = everything(out)
    (request,) = driver.commit(staged)
    assert request.outcome.kind == "known failure"
    assert isinstance(request.outcome.error, CommitRefusedError)
    assert f"4 bytes, but {staged[0].size}" in str(request.outcome.error)
    assert everything(out).keys() == before.keys() | {str(out / "_outfall" / "publish.lock")}


def test_a_foreign_file_of_our_name_is_not_replaced(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    (out / staged[0].name).write_text("somebody's")
    (request,) = driver.commit(staged)
    assert request.outcome.kind == "known failure"
    assert "created by another writer" in str(request.outcome.error)
    assert (out / staged[0].name).read_text() == "somebody's"


def test_what_is_revoked_cannot_be_published_by_anybody(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    requests = [CommitRequest(file) for file in staged]
    committer(driver).revoke(requests)
    committer(driver).revoke(requests)
    assert [request.outcome.kind for request in driver.commit(staged)] == ["lost", "lost"]
    assert visible(out) == []


def test_what_is_published_cannot_be_revoked(driver: WholeDriver) -> None:
    driver.begin()
    staged = driver.stage(rows(1))
    driver.commit(staged)
    with pytest.raises(LostCommittableError, match="published"):
        committer(driver).revoke([CommitRequest(staged[0])])


def test_files_are_durable_before_they_are_handed_over_and_renames_before_they_are_told(
    driver: WholeDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    driver.begin()
    for name in ("writev", "fsync", "rename"):
        _record(monkeypatch, name, events)
    staged = driver.stage(rows(1)) + driver.stage(rows(2), worker_index=1)
    assert events == ["writev file", "fsync file", "fsync staging"] * 2
    events.clear()
    driver.commit(staged)
    assert events == [f"fsync {driver.incarnation}.json", "rename file", "rename file", "fsync out", "fsync staging"]


def _record(monkeypatch: pytest.MonkeyPatch, name: str, events: list[str]) -> None:
    real = getattr(os, name)

    def recorded(file: Any, *args: Any) -> Any:
        path = Path(os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file)
        events.append(f"{name} {'file' if path.name.startswith('part') else path.name}")
        return real(file, *args)

    monkeypatch.setattr(os, name, recorded)


@pytest.mark.parametrize("call", ["writev", "fsync"])
def test_a_disk_error_surfaces_and_is_never_retried_into_success(
    driver: WholeDriver, out: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    driver.begin()
    part = driver.file()
    part.write_batch(rows(1))

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(TransientError, match="staging"):
            part.prepare_commit()
    with pytest.raises(TransientError, match="earlier write or fsync"):
        part.prepare_commit()
    part.close()
    driver.run(rows(1))
    assert ids(out) == [1]


def test_an_error_while_publishing_does_not_say_that_nothing_counts(
    driver: WholeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.begin()
    staged = driver.stage(rows(1))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(TransientError, match=r"free space.*continues from the recovery log") as caught:
        driver.commit(staged)
    assert "this attempt is discarded" not in str(caught.value)


def test_cleaning_up_takes_only_our_own_older_generations(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    driver.stage(rows(1), attempt=1)
    driver.begin()
    driver.stage(rows(2), attempt=1)
    staging = out / "_outfall" / "staging"
    others = str(AttemptName(0, 0, 0, "", OTHERS, 1, 1, ".jsonl"))
    (staging / others).write_text("")
    (staging / "notes.txt").write_text("")
    assert driver.clean_up() == 1
    assert staged_names(out) == sorted(["notes.txt", others, f"part-0000000000-00000-00000-{OURS}-g2-a1.jsonl"])


def test_names_read_back_and_sort_by_epoch_task_and_age() -> None:
    name = AttemptName(12, 3, 7, "", OURS, 45, 6, ".jsonl")
    assert AttemptName.parse(str(name)) == name
    assert AttemptName.parse("part-00000-0e3a-c000.snappy.parquet") is None
    order = [
        str(AttemptName(epoch, task, sequence, "", OURS, 1, 1, ".txt"))
        for epoch, task, sequence in itertools.product((2, 10), repeat=3)
    ]
    assert order == sorted(order)


def test_a_name_belongs_to_one_attempt(driver: WholeDriver) -> None:
    driver.begin()
    driver.stage(rows(1))
    with pytest.raises(TransientError, match="exists"):
        driver.stage(rows(1))


def test_many_epochs_leave_only_their_files(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(0))
    files, hidden = open_files(out), len(list((out / "_outfall").rglob("*")))
    for number in range(1, 100):
        driver.run(rows(number), [])
    assert ids(out) == list(range(100))
    assert (open_files(out), len(list((out / "_outfall").rglob("*")))) == (files, hidden)


def test_a_committable_is_stored_as_json_that_names_its_fields(out: Path) -> None:
    serializer = whole(out).committable_serializer()
    data = serializer.serialize(StagedFile(name="a", size=1, rows=2))
    assert data == b'{"name":"a","size":1,"rows":2,"bucket":""}'
    assert serializer.deserialize(1, data) == StagedFile(name="a", size=1, rows=2)


@pytest.mark.parametrize("path", ["/data/_outfall", "/data/_spark_metadata/x", "s3://lake/t/_outfall/staging"])
def test_a_target_is_not_in_the_directory_of_a_sinks_own_files(path: str) -> None:
    with pytest.raises(ConfigurationError, match="where a sink keeps its own files"):
        FileSink(path)
