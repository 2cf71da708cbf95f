"""Whole files: first contact, restored checkpoints, and drivers that wake late."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from outfall.capabilities import CommitRequest
from outfall.errors import (
    FencedError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    UnsharedTargetError,
)
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import (
    OTHERS,
    WholeDriver,
    everything,
    ids,
    meanwhile,
    rows,
    whole,
)


@pytest.fixture
def driver(out: Path) -> WholeDriver:
    return WholeDriver(whole(out))


def test_first_contact_with_data_is_refused_unless_told(out: Path) -> None:
    out.mkdir()
    (out / "old.jsonl").write_text('{"id":1}\n')
    before = everything(out)
    with pytest.raises(TargetNotEmptyError, match=r"old\.jsonl"):
        WholeDriver(whole(out)).begin()
    assert everything(out) == before
    WholeDriver(whole(out, on_existing="resume")).run(rows(2))
    assert ids(out) == [1, 2] or ids(out) == [2, 1]


def test_overwriting_deletes_what_is_there_once_and_stops_the_query_that_wrote_it(out: Path) -> None:
    first = WholeDriver(whole(out))
    first.run(rows(1))
    first.begin()
    staged = first.stage(rows(2))
    second = WholeDriver(whole(out, on_existing="overwrite"), incarnation=OTHERS)
    second.run(rows(3))
    second.run(rows(4))
    assert ids(out) == [3, 4]
    with pytest.raises(TargetLostError, match="overwritten"):
        first.commit(staged)
    with pytest.raises(TargetLostError, match="overwritten"):
        first.check()
    with pytest.raises(UnsharedTargetError):
        first.file(attempt=9)
    assert ids(out) == [3, 4]


def test_overwriting_waits_for_a_query_that_is_publishing(out: Path) -> None:
    first = WholeDriver(whole(out))
    first.begin()
    staged = [file for index in range(3) for file in first.stage(rows(index), worker_index=index)]
    second = WholeDriver(whole(out, on_existing="overwrite"), incarnation=OTHERS)
    blocked: list[str] = []

    def overwrite() -> None:
        try:
            second.begin()
        except TransientError as error:
            blocked.append(str(error))

    with meanwhile("file: published", overwrite):
        first.commit(staged)
    assert "publish.lock has been locked by another process for more than 0.05 s. A query that publishes" in blocked[0]
    assert f'"pid": {os.getpid()}' in blocked[0]
    assert sorted(ids(out)) == [0, 1, 2]
    second.run(rows(100))
    assert ids(out) == [100]


def test_taking_back_waits_for_a_driver_that_is_publishing(out: Path) -> None:
    driver = WholeDriver(whole(out))
    driver.run(rows(1))
    copy = driver.restored_copy(whole(out, on_rewind="truncate"))
    driver.begin()
    staged = [file for index in range(2) for file in driver.stage(rows(index + 2), worker_index=index)]
    blocked: list[str] = []

    def take_back() -> None:
        try:
            copy.begin()
        except TransientError as error:
            blocked.append(str(error))

    with meanwhile("file: published", take_back):
        driver.commit(staged)
    assert "publish.lock has been locked" in blocked[0]
    copy.run(rows(9))
    assert sorted(ids(out)) == [1, 9]


def test_a_query_whose_directory_was_overwritten_publishes_nothing(out: Path) -> None:
    first = WholeDriver(whole(out))
    first.begin()
    staged = first.stage(rows(1))
    WholeDriver(whole(out, on_existing="overwrite"), incarnation=OTHERS).run(rows(100))
    with pytest.raises(TargetLostError, match="overwritten"):
        first.commit(staged)
    assert ids(out) == [100]


def test_two_drivers_of_one_step_publish_at_once(out: Path) -> None:
    driver = WholeDriver(whole(out))
    driver.begin()
    staged = [file for index in range(2) for file in driver.stage(rows(index), worker_index=index)]
    with meanwhile("file: published", lambda: driver.commit(staged)):
        driver.commit(staged)
    assert sorted(ids(out)) == [0, 1]


@pytest.mark.parametrize("asleep", [True, False])
def test_an_older_driver_that_wakes_before_overwriting_deletes_nothing(out: Path, asleep: bool) -> None:
    out.mkdir()
    (out / "old.jsonl").write_text("old\n")
    late = WholeDriver(whole(out, on_existing="overwrite"))
    late.begin(open_target=False)
    newer = late.restored_copy(whole(out, on_existing="overwrite"))
    if asleep:
        newer.run(rows(1))
        with pytest.raises(FencedError, match="a newer driver"):
            late.open()
    else:
        with (
            meanwhile("file: opening", lambda: newer.run(rows(1))),
            pytest.raises(FencedError, match="a newer driver"),
        ):
            late.open()
    assert ids(out) == [1]


def test_a_second_query_is_refused_although_nothing_is_published_yet(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    with pytest.raises(TargetNotEmptyError, match="Another query"):
        WholeDriver(whole(out), incarnation=OTHERS).begin()


def test_the_checkpoint_deleted_and_the_target_kept_is_refused(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(1))
    with pytest.raises(TargetNotEmptyError):
        WholeDriver(whole(out), incarnation=OTHERS).begin()


def test_the_target_deleted_and_the_checkpoint_kept_is_refused(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(1))
    out.rename(out.with_name("gone"))
    with pytest.raises(TargetLostError, match="epoch 0"):
        driver.check()
    assert not out.exists()


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_a_checkpoint_restored_from_an_older_copy_is_refused_or_the_later_epochs_taken_back(
    driver: WholeDriver, out: Path, epochs: int
) -> None:
    driver.run(rows(0))
    strict = driver.restored_copy(whole(out))
    taking_back = driver.restored_copy(whole(out, on_rewind="truncate"))
    for number in range(epochs):
        driver.run(rows(number + 1))
    before = everything(out)
    with pytest.raises(TargetAheadError, match=f"epoch {epochs}"):
        strict.begin()
    assert everything(out) == before
    taking_back.begin(open_target=False)  # killed right after BEGIN
    taking_back.run(rows(10))
    taking_back.run(rows(20))
    assert ids(out) == [0, 10, 20]


def test_taking_back_that_was_killed_is_finished_by_the_next_run(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(0))
    restored = driver.restored_copy(whole(out, on_rewind="truncate"))
    driver.run(rows(1), rows(2))
    with crash_at("file: publication taken back") as seen:
        restored.begin()
    assert seen[-1] == "file: publication taken back"
    restored.run(rows(10))
    assert ids(out) == [0, 10]


def test_an_older_driver_that_wakes_before_taking_back_deletes_nothing(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(0))
    late = driver.restored_copy(whole(out, on_rewind="truncate"))
    driver.run(rows(1))
    late.begin(open_target=False)
    newer = late.restored_copy(whole(out, on_rewind="truncate"))
    newer.run(rows(10))
    with pytest.raises(FencedError, match="a newer driver"):
        late.open()
    assert ids(out) == [0, 10]


def test_an_epoch_whose_commit_was_cut_off_is_not_taken_for_a_rewind(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(0))
    driver.begin()
    staged = driver.stage(rows(1))
    with crash_at("file: published"):
        driver.commit(staged)
    driver.commit(staged)
    driver.published = driver.epoch
    driver.record_completed()
    driver.run(rows(2))
    assert ids(out) == [0, 1, 2]


def test_an_epoch_written_anew_is_not_taken_for_a_rewind(driver: WholeDriver, out: Path) -> None:
    for number in range(3):
        driver.begin()
        driver.stage(rows(number))
    driver.run(rows(9))
    driver.run(rows(10))
    assert ids(out) == [9, 10]


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_directory_restored_from_an_older_copy_is_refused_and_left_as_it_is(
    driver: WholeDriver, out: Path, epochs: int
) -> None:
    driver.run(rows(0))
    shutil.copytree(out, out.with_name("copy"))
    for number in range(epochs):
        driver.run(rows(number))
    shutil.rmtree(out)
    out.with_name("copy").rename(out)
    before = everything(out)
    with pytest.raises(TargetLostError, match="behind the recovery data"):
        driver.begin()
    assert everything(out) == before


def test_a_marker_that_lost_the_newest_epoch_is_behind_although_its_begin_survives(
    driver: WholeDriver, out: Path
) -> None:
    driver.run(rows(0))
    record = out / "_outfall" / f"{driver.incarnation}.json"
    driver.begin()
    staged, before = driver.stage(rows(1)), record.read_bytes()
    driver.commit(staged)
    driver.published = driver.epoch
    driver.record_completed()
    record.write_bytes(before)
    with pytest.raises(TargetLostError, match="it has epoch 0, but epoch 1 was published"):
        driver.begin()


def test_epochs_without_files_are_no_loss(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(1))
    driver.run()
    driver.run([])
    driver.run(rows(2))
    assert ids(out) == [1, 2]


def test_of_two_copies_of_a_log_the_one_that_opens_second_is_refused(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(0))
    copy = driver.restored_copy(whole(out))
    driver.append_begin()
    copy.append_begin()
    driver.open()
    with pytest.raises(FencedError, match="The recovery data was copied"):
        copy.open()
    # The copy was opened by nobody, but what it staged might have been recorded before the copying.
    with pytest.raises(FencedError, match="The recovery data was copied"):
        copy.commit(copy.stage(rows(2)))
    driver.commit(driver.stage(rows(1), attempt=1))
    copy.append_begin()
    with pytest.raises(FencedError, match="The recovery data was copied"):
        copy.open()
    assert ids(out) == [0, 1]


def test_whoever_settles_publishes_what_was_staged_under_another_begin(driver: WholeDriver, out: Path) -> None:
    driver.begin()
    recorded, context = driver.stage(rows(1)), driver.committing()
    copy = driver.restored_copy(whole(out))
    for settling in (driver, copy):
        settling.sink.create_committer(context).commit([CommitRequest(file) for file in recorded])
    assert ids(out) == [1]


def test_later_epochs_are_taken_back_although_as_many_attempts_to_do_so_were_killed(
    driver: WholeDriver, out: Path
) -> None:
    driver.run(rows(0))
    restored = driver.restored_copy(whole(out, on_rewind="truncate"))
    driver.begin()
    driver.stage(rows(1))
    for _ in range(3):
        restored.begin(open_target=False)
    restored.run(rows(2))
    assert ids(out) == [0, 2]
    with pytest.raises(FencedError):
        driver.commit(driver.stage(rows(1), attempt=5))


@pytest.mark.parametrize("content", ["", "{", '{"incarnation": "aa", "of": "a newer release"}'])
def test_an_unreadable_marker_is_refused_and_not_written_anew(driver: WholeDriver, out: Path, content: str) -> None:
    driver.run(rows(0))
    driver.begin()
    staged = driver.stage(rows(1))
    record = out / "_outfall" / f"{driver.incarnation}.json"
    record.write_text(content)
    for call in (driver.check, driver.open, lambda: driver.commit(staged)):
        with pytest.raises(TargetLostError, match="cannot be read"):
            call()
    assert record.read_text() == content
    assert ids(out) == [0]


def test_a_marker_of_a_release_before_tokens_is_taken_as_it_is(driver: WholeDriver, out: Path) -> None:
    driver.run(rows(0))
    record = out / "_outfall" / f"{driver.incarnation}.json"
    old = json.loads(record.read_text()) | {"generation": 1}
    record.write_text(json.dumps({key: old[key] for key in old if key not in ("token", "ready")}))
    driver.published = None
    driver.run(rows(1))
    assert ids(out) == [0, 1]
    assert json.loads(record.read_text())["token"] == driver.token
