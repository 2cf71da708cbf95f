"""A local log on broken disks and in wrong places."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from outfall.errors import ConfigurationError, RecordError, TransientError
from outfall.recovery import EntryExistsError, LogEntry
from tests.unit.support.logs import files, filled, numbers, opened


def test_bytes_are_durable_before_their_name_is_and_the_name_before_append_returns(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    watch(monkeypatch, done)
    log = opened(local)
    log.append(b"{}", after=0)
    first, directories = done[-3:], done[:-3]
    assert first == ["fsync of 2 bytes", "link", "fsync sink"]
    parent = Path(local).parent
    expected = [f"fsync {parent.parent.name}", "mkdir chk", f"fsync {parent.name}", "mkdir outfall", "fsync chk"]
    assert directories == [*expected, "mkdir sink", "fsync outfall"]
    done.clear()
    log.append(b"{}", after=1)
    assert done == ["fsync of 2 bytes", "link", "fsync sink"]
    done.clear()
    log.write_state("p", b"abc", generation=1)
    assert done == ["fsync outfall", "mkdir states", "fsync sink", "fsync of 3 bytes", "fsync states"]


def test_a_heartbeat_before_the_first_entry_leaves_no_level_that_is_not_durable(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    watch(monkeypatch, done)
    opened(local).set_heartbeat("g1-driver.heartbeat", b"{}")
    parent = Path(local).parent
    above = [f"fsync {parent.parent.name}", "mkdir chk", f"fsync {parent.name}", "mkdir outfall", "fsync chk"]
    assert done == [*above, "mkdir sink", "fsync outfall", "mkdir states", "fsync sink"]


def test_entries_are_made_durable_by_who_reads_them_unless_it_knows_them(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(local)
    for number in range(2):
        writer.append(b"{}", after=number)
    done: list[str] = []
    watch(monkeypatch, done)
    known = {entry.number: entry.data for entry in opened(local).read()}
    assert (sorted(known), done) == ([1, 2], ["fsync sink"])
    for some, expected in ((known, []), ({2: known[2]}, ["fsync sink"]), ({**known, 2: b"other"}, ["fsync sink"])):
        done.clear()
        opened(local).read(known=some)
        assert done == expected


def watch(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def watched_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        size = f"of {os.path.getsize(path)} bytes"
        done.append(f"fsync {os.path.basename(path) if os.path.isdir(path) else size}")
        fsync(descriptor)

    def watched_link(source: str, target: str) -> None:
        done.append("link")
        link(source, target)

    def watched_mkdir(path: str) -> None:
        done.append(f"mkdir {os.path.basename(path)}")
        mkdir(path)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    monkeypatch.setattr(os, "mkdir", watched_mkdir)


def test_a_directory_whose_maker_died_before_its_sync_is_synced_by_the_next(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(f"{local}/outfall/sink")
    done: list[str] = []
    watch(monkeypatch, done)
    opened(local).append(b"{}", after=0)
    assert done[0] == "fsync outfall"


def test_the_directory_of_an_entry_is_not_synced_again_by_who_has_read_the_entry(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(local, 1)
    log = opened(local)
    log.read()
    done: list[str] = []
    watch(monkeypatch, done)
    log.append(b"{}", after=1)
    assert done == ["fsync of 2 bytes", "link", "fsync sink"]
    log.erase()
    done.clear()
    log.append(b"{}", after=0)
    assert done == ["fsync chk", "mkdir sink", "fsync outfall", "fsync of 2 bytes", "link", "fsync sink"]


def test_what_was_read_is_durable(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(local, 1)
    done: list[str] = []
    watch(monkeypatch, done)
    log.read()
    assert done == ["fsync sink"]


def test_an_erased_log_does_not_come_back(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(local, 1)
    done: list[str] = []
    watch(monkeypatch, done)
    log.erase()
    assert done == ["fsync outfall"]


def failing(monkeypatch: pytest.MonkeyPatch, function: str, code: int, nth: int = 1) -> list[int]:
    """Let the nth call of an os function fail, and count the calls."""
    calls, real = [0], getattr(os, function)

    def failing_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(os, function, failing_once)
    return calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("function", ["fsync", "link"])
def test_a_write_that_fails_leaves_nothing_and_is_not_called_a_success(
    local: str, function: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, links = filled(local, 1), failing(monkeypatch, "link", 0, nth=0)
    calls = failing(monkeypatch, function, code)
    with pytest.raises(TransientError, match=r"appending recovery entry 2 in .* failed.*What to do") as failed:
        log.append(b"{}", after=1)
    assert calls == [1], "neither is tried again"
    assert links == [0]
    assert isinstance(failed.value.__cause__, OSError)
    assert files(local) == [f"{1:020d}.json"]
    assert log.append(b"{}", after=1) == 2


def test_a_failed_sync_of_the_directory_is_an_error_though_the_entry_is_there(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(local, 1)
    calls = failing(monkeypatch, "fsync", errno.EIO, nth=2)
    with pytest.raises(TransientError, match="Input/output error"):
        log.append(b"{}", after=1)
    assert calls == [2]
    assert numbers(log) == [1, 2]
    with pytest.raises(EntryExistsError):
        log.append(b"{}", after=1)


def test_a_state_that_fails_on_a_full_disk_does_not_stay(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(local, 1)
    log.write_state("p", b"x", generation=1)
    failing(monkeypatch, "fsync", errno.ENOSPC)
    with pytest.raises(TransientError, match=r"writing the state 'p'.*free space"):
        log.write_state("p", b"x" * 1000, generation=1)
    assert len(files(local)) == 2


@pytest.mark.parametrize("function", ["mkdir", "link"])
def test_a_read_only_filesystem_is_a_wrong_configuration(
    local: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, function, errno.EROFS)
    with pytest.raises(ConfigurationError, match=r"Read-only.*recovery="):
        opened(local).append(b"{}", after=0)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_filesystem_without_hard_links_is_refused_with_what_to_use_instead(
    local: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "link", code)
    with pytest.raises(ConfigurationError, match=r"does not support hard links.*\[?recovery=.*s3://"):
        opened(local).append(b"{}", after=0)
    assert files(local) == []


@pytest.mark.parametrize("below", ["", "/chk"])
def test_a_file_in_the_way_is_a_wrong_configuration(tmp_path: Path, below: str) -> None:
    tmp_path.joinpath("file").write_text("somebody's")
    log = opened(f"{tmp_path}/file{below}")
    for use in (log.read, lambda: log.append(b"{}", after=0), lambda: log.write_state("p", b"", generation=1)):
        with pytest.raises(ConfigurationError, match=r"NotADirectoryError.*What to do: make every level"):
            use()
    assert tmp_path.joinpath("file").read_text() == "somebody's"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only directory")
def test_a_read_only_directory_is_a_wrong_configuration(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        opened(f"{tmp_path}/chk").append(b"{}", after=0)


def test_a_log_removed_while_it_is_used_is_not_begun_anew(location: str) -> None:
    log = filled(location, 3)
    fs, path = fsspec.core.url_to_fs(location)
    fs.rm(path, recursive=True)
    with pytest.raises(RecordError, match="emptied or replaced"):
        log.append(b"{}", after=3)
    assert log.read() == []


@pytest.mark.parametrize("content", [b"", b'{"cut'])
def test_a_damaged_entry_is_given_as_it_is(local: str, content: bytes) -> None:
    log = filled(local, 2)
    Path(local, "outfall", "sink", f"{2:020d}.json").write_bytes(content)
    assert log.read()[-1] == LogEntry(2, content)


def test_files_of_others_are_neither_read_nor_cleaned_up(local: str) -> None:
    log = filled(local, 2)
    others = ["README", "1.json", f"{1:020d}.json.bak", f".{1:020d}.json.crc", "states/notes", "states/g0-x.state"]
    directory = Path(local, "outfall", "sink")
    directory.joinpath("states").mkdir()
    for name in others:
        directory.joinpath(name).write_text("x")
    log.clean_up(keep=[2], states=[], generation=9)
    assert files(local) == sorted([*others, f"{2:020d}.json"])


def test_a_link_whose_reply_was_lost_is_a_success(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lost_reply(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lost_reply)
    assert opened(local).append(b"{}", after=0) == 1
