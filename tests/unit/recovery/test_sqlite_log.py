"""Recovery data in SQLite: what a database can suffer, and how states travel to tasks that cannot reach it."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from outfall import trace_points
from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError
from outfall.recovery import EntryExistsError, SqliteRecoveryConfig, recovery_config, sqlite_database
from outfall.recovery import entries as values
from outfall.recovery.log import RecoveryLog
from outfall.recovery.sqlite_database import MIGRATIONS, SqliteDatabase
from outfall.testing import LocalDriver
from outfall.testing.minimal_sinks import CountingSink
from tests.disks import memory_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db" / "sink.sqlite"


def opened(path: Path, deadline: float = 30.0) -> RecoveryLog:
    return SqliteRecoveryConfig(str(path.parent), deadline=deadline).open("sink")


def fill(path: Path, count: int = 3) -> None:
    with closing(opened(path)) as log:
        for number in range(count):
            log.append(b"%d" % (number + 1), after=number)


def killed_after(path: Path, count: int) -> None:
    """A process that is killed once it has appended so many entries: the WAL stays."""
    child = os.fork()
    if child == 0:
        fill(path, 1)
        log = opened(path)
        for number in range(1, count):
            log.append(b"%d" % (number + 1), after=number)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def read(path: Path) -> list[bytes]:
    with closing(opened(path)) as log:
        return [entry.data for entry in log.read()]


def test_reading_makes_nothing_and_the_first_append_makes_a_database_of_its_own_per_step(tmp_path: Path) -> None:
    config = SqliteRecoveryConfig(str(tmp_path / "a" / "b"))
    with closing(config.open("one")) as log:
        assert log.read() == []
    assert not (tmp_path / "a").exists()
    with closing(config.open("one")) as log:
        log.append(b"x", after=0)
    assert os.listdir(tmp_path / "a" / "b") == ["one.sqlite"]


def test_the_url_gives_an_equal_configuration(tmp_path: Path) -> None:
    config = SqliteRecoveryConfig(f"{tmp_path}/a/../with space#")
    assert config.url() == f"sqlite://{tmp_path}/with space#"
    assert recovery_config(config.url()) == config == pickle.loads(pickle.dumps(config))


@pytest.mark.parametrize("location", ["relative", "", "s3://bucket/x"])
def test_a_directory_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(ConfigurationError):
        SqliteRecoveryConfig(location)
    with pytest.raises(ConfigurationError):
        recovery_config(f"sqlite://{location}")
    with pytest.raises(ConfigurationError, match="deadline is 0"):
        SqliteRecoveryConfig("/data", deadline=0)


def test_settings_are_what_durability_needs(path: Path) -> None:
    with closing(SqliteDatabase(str(path), "sink", 1)) as database:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("user_version", len(MIGRATIONS))):
            assert database.connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)


def test_a_locked_database_is_waited_for_and_then_an_error_that_says_how_long(path: Path) -> None:
    fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with closing(opened(path, deadline=0.2)) as log:
            assert len(log.read()) == 3
            with pytest.raises(TransientError, match=r"SQLITE_BUSY.*waited 0.2 seconds.*has locked the database"):
                log.append(b"x", after=3)
            other.execute("COMMIT")
            assert log.append(b"x", after=3) == 4


@pytest.mark.thorough
def test_several_that_open_what_none_has_made_yet_are_not_in_each_others_way(tmp_path: Path) -> None:
    level = threading.Barrier(4, timeout=60)

    def open_all() -> None:
        for place in range(25):
            level.wait()
            with closing(SqliteRecoveryConfig(str(tmp_path / str(place))).open("sink")) as log:
                with suppress(EntryExistsError):
                    log.append(b"{}", after=0)
                assert log.numbers() == [1]

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(open_all) for _ in range(4)]:
            done.result()


def test_a_database_that_was_copied_without_its_wal_is_refused(path: Path, tmp_path: Path) -> None:
    killed_after(path, 5)
    whole, torn = tmp_path / "whole" / "sink.sqlite", tmp_path / "torn" / "sink.sqlite"
    shutil.copytree(path.parent, whole.parent)
    torn.parent.mkdir()
    shutil.copy(path, torn)
    for act in (read, fill):
        with pytest.raises(RecordError, match="newest entries were in its -wal file, which does not exist"):
            act(torn)
    assert read(whole) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_copy_made_while_a_driver_has_it_open_is_refused_without_the_wal(path: Path, tmp_path: Path) -> None:
    fill(path)
    torn = tmp_path / "torn" / "sink.sqlite"
    torn.parent.mkdir()
    with closing(opened(path)) as log:
        log.append(b"4", after=3)
        shutil.copy(path, torn)
    with pytest.raises(RecordError, match="-wal file"):
        read(torn)


def test_a_mark_that_another_who_opens_takes_back_is_made_again(path: Path, tmp_path: Path) -> None:
    fill(path)
    torn = tmp_path / "torn" / "sink.sqlite"
    torn.parent.mkdir()
    with closing(opened(path)) as log, closing(sqlite3.connect(path, isolation_level=None)) as other:
        assert log.numbers() == [1, 2, 3]
        taken: list[str] = []

        def roll_back(step: str) -> None:
            if step == "log: committed" and not taken:
                taken.append(step)
                other.execute("UPDATE main_file SET behind = 0")

        remove = trace_points.listen(roll_back)
        try:
            log.append(b"4", after=3)
        finally:
            remove()
        assert taken
        shutil.copy(path, torn)
    with pytest.raises(RecordError, match="-wal file"):
        read(torn)


def test_beside_a_reader_that_stays_appends_go_on_with_a_warning_until_the_file_can_be_marked(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.recovery.sqlite_database._PATIENCE", 0.05)
    fill(path)
    torn = tmp_path / "torn" / "sink.sqlite"
    torn.parent.mkdir()
    with closing(opened(path)) as log, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert len(reader.execute("SELECT * FROM entries").fetchall()) == 3
        for after in range(3, 6):
            log.append(b"x", after=after)
        assert caplog.text.count("read in a transaction that stays open") == 1
        reader.execute("COMMIT")
        log.append(b"x", after=6)
        shutil.copy(path, torn)
    with pytest.raises(RecordError, match="-wal file"):
        read(torn)
    assert len(read(path)) == 7


def test_another_who_moves_the_wal_over_is_waited_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, busy = SqliteDatabase._checkpoint, [True]
    monkeypatch.setattr(
        SqliteDatabase, "_checkpoint", lambda self, seconds: not (busy and busy.pop()) and given(self, seconds)
    )
    fill(path)
    torn = tmp_path / "torn" / "sink.sqlite"
    torn.parent.mkdir()
    with closing(opened(path)) as log:
        log.append(b"4", after=3)
        assert not busy
        shutil.copy(path, torn)
    with pytest.raises(RecordError, match="-wal file"):
        read(torn)


def test_a_copy_of_a_closed_database_needs_no_wal(path: Path, tmp_path: Path) -> None:
    fill(path)
    assert os.listdir(path.parent) == ["sink.sqlite"]
    copy = tmp_path / "copy" / "sink.sqlite"
    shutil.copytree(path.parent, copy.parent)
    assert read(copy) == [b"1", b"2", b"3"]


def test_a_process_that_ends_without_closing_leaves_nothing_that_looks_like_a_lost_wal(path: Path) -> None:
    fill(path)
    log = opened(path)
    log.append(b"4", after=3)
    log._open.connection.close()  # type: ignore[attr-defined]  # as the interpreter does at its end
    assert read(path) == [b"1", b"2", b"3", b"4"]


def test_a_reader_that_closes_last_does_not_hide_what_a_killed_writer_committed(path: Path) -> None:
    killed_after(path, 4)
    assert read(path) == read(path) == [b"1", b"2", b"3", b"4"]


def test_what_a_killed_writer_left_in_the_wal_is_durable_before_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(path, 2)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    assert read(path) == [b"1", b"2"]
    assert f"{path}-wal" in synced


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"no database at all" * 100), "SQLITE_NOTADB|not a database"),
        (lambda path: overwrite(path, 4096, b"\xff" * 4096), "damaged|SQLITE_CORRUPT"),
        (lambda path: os.truncate(path, 8192), "damaged|SQLITE_CORRUPT"),
        (lambda path: run(path, "PRAGMA application_id = 7"), "not a database of Outfall"),
        (lambda path: run(path, "PRAGMA user_version = 99"), r"has version 99; this release reads up to 1"),
    ],
    ids=["no database", "a page overwritten", "truncated", "somebody else's", "newer"],
)
def test_a_damaged_or_foreign_database_is_refused(path: Path, damage: Callable[[Path], object], message: str) -> None:
    fill(path, 50)
    damage(path)
    for act in (read, lambda path: fill_on(path, 50)):
        with pytest.raises(RecordError, match=message):
            act(path)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def fill_on(path: Path, after: int) -> None:
    with closing(opened(path)) as log:
        log.append(b"x", after=after)


def test_a_file_of_no_length_is_a_database_that_was_not_made_yet(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert read(path) == []
    fill(path)
    assert len(read(path)) == 3


def test_a_database_that_is_removed_or_replaced_while_it_is_open_is_not_written_on(path: Path) -> None:
    fill(path)
    with closing(opened(path)) as log:
        log.read()
        path.unlink()
        with pytest.raises(RecordError, match="removed or replaced while it was open"):
            log.append(b"x", after=3)


def test_an_unwritable_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutfallError, match="appending recovery entry 1"):
        fill(tmp_path / "file" / "sink.sqlite")


def looked_at(path: Path) -> list[bytes]:
    """What who only looks on reads; nothing is made, changed or waited for."""
    # Not their content: whoever closes a file here loses the locks that this process has on it.
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.parent.iterdir()}
    with closing(SqliteRecoveryConfig(str(path.parent), deadline=0.01).open_read_only("sink")) as log:
        found = [entry.data for entry in log.read()]
        assert len(log.numbers()) == len(found)
    assert {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.parent.iterdir()} == before
    return found


def test_who_looks_on_reads_beside_a_driver_that_writes_and_keeps_it_from_nothing(path: Path) -> None:
    fill(path)
    with closing(opened(path, deadline=0.01)) as log:
        log.append(b"4", after=3)
        database = log._database()  # type: ignore[attr-defined]
        with database.transaction() as connection:
            connection.execute("INSERT INTO entries VALUES (5, x'78')")
            assert looked_at(path) == [b"1", b"2", b"3", b"4"]
        onlooker = SqliteRecoveryConfig(str(path.parent)).open_read_only("sink")
        onlooker.numbers()
        log.append(b"6", after=5)
        database.checkpoint(above=0)
        onlooker.close()
        assert looked_at(path)[3:] == [b"4", b"x", b"6"]


def test_who_looks_on_reads_what_a_driver_left_and_any_copy_of_it(path: Path, tmp_path: Path) -> None:
    fill(path)
    assert looked_at(path) == [b"1", b"2", b"3"]
    for copied, found in ((("", "-wal", "-shm"), 5), (("", "-wal"), 5), (("",), 0)):
        killed = tmp_path / f"copied {len(copied)}" / "sink.sqlite"
        killed_after(killed, 5)
        for end in {"-wal", "-shm"} - set(copied):
            os.unlink(f"{killed}{end}")
        if found:
            assert len(looked_at(killed)) == found
        else:
            with pytest.raises(RecordError, match="-wal file"):
                looked_at(killed)


def test_who_looks_on_believes_nothing_of_a_file_that_changed_meanwhile(path: Path) -> None:
    fill(path)
    with closing(SqliteRecoveryConfig(str(path.parent)).open_read_only("sink")) as log:
        log.numbers()
        fill_on(path, 3)
        with pytest.raises(TransientError, match="changed while it was read"):
            log.read()


def test_who_looks_on_does_not_bring_a_database_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    monkeypatch.setattr(sqlite_database, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE later (x)",)))
    with pytest.raises(TransientError, match="does not have the tables of this release yet"):
        looked_at(path)


def test_a_full_disk_is_an_error_and_what_was_recorded_is_kept(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk", "size=2m") as disk:
        path = disk.path / "sink.sqlite"
        fill(path)
        disk.fill()
        with closing(opened(path)) as log, pytest.raises(TransientError, match=r"free space there|check that disk"):
            log.append(b"x" * 5_000_000, after=3)
        (disk.path / "filler").unlink()
        assert read(path) == [b"1", b"2", b"3"]
        fill_on(path, 3)


def test_a_read_only_disk_is_an_error_that_says_what_to_make_writable(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk", "size=2m") as disk:
        path = disk.path / "sink.sqlite"
        fill(path)
        disk.remount("ro")
        with pytest.raises(ConfigurationError, match="writable for the driver"):
            fill_on(path, 3)
        disk.remount("rw")
        assert len(read(path)) == 3


class StopError(Exception):
    pass


@pytest.mark.parametrize("step", ["log: before commit", "log: committed", "log: main file marked"])
def test_an_interruption_while_the_main_file_is_marked_is_not_taken_for_a_lost_wal(path: Path, step: str) -> None:
    fill(path)

    def interrupt(reached: str) -> None:
        if reached == step:
            raise StopError

    remove = trace_points.listen(interrupt)
    try:
        with closing(opened(path)) as log, pytest.raises(StopError):
            log.append(b"4", after=3)
    finally:
        remove()
    assert read(path) == [b"1", b"2", b"3"]
    fill_on(path, 3)


# --- states travel


class OnDriverOnly(SqliteRecoveryConfig):
    """Refuses to be opened while a task runs."""

    in_task = False

    def open(self, step_id: str) -> RecoveryLog:
        assert not OnDriverOnly.in_task
        return super().open(step_id)


class Driver(LocalDriver):
    def run_task(self, *args: Any, **kwargs: Any) -> Any:
        OnDriverOnly.in_task = True
        try:
            return super().run_task(*args, **kwargs)
        finally:
            OnDriverOnly.in_task = False


def test_tasks_never_open_the_database_and_large_states_lie_in_it_once(tmp_path: Path) -> None:
    config = OnDriverOnly(str(tmp_path))
    sink = CountingSink(parts=3, padding=100_000)
    for epoch in range(4):
        Driver(sink, config).run_epoch(epoch, [[("0", 1)], [("1", 1)], [("2", 1)]] if epoch < 2 else [[("0", 1)]])
    assert sink.opened["part-0", 3] == 3
    assert sink.opened["part-2", 1] == 1
    with closing(sqlite3.connect(tmp_path / "sink.sqlite")) as database:
        sizes = database.execute("SELECT length(data) FROM states").fetchall()
        assert len(sizes) == 3, "states of parts without rows are not stored again"
        (longest,) = database.execute("SELECT max(length(data)) FROM entries").fetchone()
        assert longest < 10_000


def test_more_states_than_tickets_carry_are_refused_before_they_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.protocol.states.CARRIED", 250_000)
    config = SqliteRecoveryConfig(str(tmp_path))
    sink = CountingSink(parts=3, padding=100_000)
    Driver(sink, config).run_epoch(0, [[("0", 1), ("1", 1)]])
    with pytest.raises(ConfigurationError, match=r"have 300,0\d\d bytes together, more than the maximum of 250,000"):
        Driver(sink, config).run_epoch(1, [[("2", 1)]])
    assert values.CARRIED == 64 * 1024 * 1024
    monkeypatch.undo()
    Driver(sink, config).run_epoch(1, [[("0", 1)]])
    assert sink.opened["part-0", 1] == 1


SECOND = ("CREATE TABLE notes (found INTEGER)", "INSERT INTO notes SELECT count(*) FROM entries")


def tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What the database holds, with its version, by SQLite alone."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
        return found | {"version": connection.execute("PRAGMA user_version").fetchall()}


def test_a_database_of_an_older_release_is_brought_up_to_date_and_gone_on_from(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(path)) as log:
        log.append(b"1", after=0)
        state = log.write_state("p", b"state", generation=1)
    monkeypatch.setattr(sqlite_database, "MIGRATIONS", (*MIGRATIONS, SECOND))
    with closing(opened(path)) as log:
        assert log.read_state(state) == b"state"
        assert log.append(b"2", after=1) == 2
    assert read(path) == [b"1", b"2"]
    found = tables(path)
    assert (found["version"], found["notes"], found["entries"]) == ([(2,)], [(1,)], [(1, b"1"), (2, b"2")])
    fresh = path.with_name("fresh.sqlite")
    with closing(SqliteRecoveryConfig(str(path.parent)).open("fresh")) as log:
        log.append(b"1", after=0)
    found = tables(fresh)
    assert (found["version"], found["notes"], found["entries"]) == ([(2,)], [(0,)], [(1, b"1")])
    monkeypatch.undo()
    with pytest.raises(RecordError, match="has version 2; this release reads up to 1"):
        read(path)


def test_a_migration_that_fails_leaves_the_database_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    before = tables(path)
    with monkeypatch.context() as newer:
        newer.setattr(sqlite_database, "MIGRATIONS", (*MIGRATIONS, (*SECOND, "UPDATE nowhere SET x = 1")))
        with pytest.raises(OutfallError, match="no such table: nowhere"):
            read(path)
    assert tables(path) == before
    assert read(path) == [b"1", b"2", b"3"]


def test_a_driver_that_is_killed_while_it_migrates_leaves_the_database_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    before = tables(path)
    monkeypatch.setattr(sqlite_database, "MIGRATIONS", (*MIGRATIONS, SECOND))
    child = os.fork()
    if child == 0:
        trace_points.listen(lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == "log: before commit" else None)
        with closing(opened(path)) as log:
            log.read()
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert tables(path) == before
    assert read(path) == [b"1", b"2", b"3"]
    assert tables(path)["version"] == [(2,)]
