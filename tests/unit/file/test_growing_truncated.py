"""Growing files that another program truncates, replaces or extends in the middle of an epoch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from outfall.errors import CommitError, SealError, TargetLostError, TransientError
from outfall.file.whole.writer import WholeFile
from tests.programs import program
from tests.unit.support.file_target import GrowingDriver, WholeDriver, everything, growing, ids, meanwhile, rows, whole

PART = "part-00000.jsonl"


def truncate_elsewhere(path: Path, size: int = 0) -> None:
    """What `logrotate` does with `copytruncate`, in a process of its own."""
    subprocess.run([sys.executable, "-c", f"import os; os.truncate({str(path)!r}, {size})"], check=True)


def replace(path: Path, size: int | None) -> None:
    """What `logrotate` does with `create` (or, without a size, with `nocreate`)."""
    path.rename(path.with_name("rotated"))
    if size is not None:
        path.write_bytes(b"x" * size)


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    driver = GrowingDriver(growing(out, parts=2))
    driver.run({PART: rows(1, 2, 3)})
    return driver


CHANGES = {
    "truncated to 0": truncate_elsewhere,
    "truncated to 5": lambda path: truncate_elsewhere(path, 5),
    "created anew": lambda path: replace(path, 0),
    "replaced by as many bytes": lambda path: replace(path, path.stat().st_size),
    "moved away": lambda path: replace(path, None),
}
_OF_OTHER_SIZE = {name: change for name, change in CHANGES.items() if name != "replaced by as many bytes"}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_changes_between_two_writes_is_refused_and_left_as_it_is(
    driver: GrowingDriver, out: Path, change: Callable[[Path], None]
) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch(rows(4))
    part.write_rest()
    change(out / PART)
    before = everything(out)
    part.write_batch(rows(5))
    with pytest.raises(TargetLostError, match=f"{PART}.*(written|missing)"):
        part.snapshot()
    assert everything(out) == before


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("moment", ["file: writing", "file: written", "file: synced"])
@pytest.mark.parametrize("change", _OF_OTHER_SIZE.values(), ids=_OF_OTHER_SIZE.keys())
def test_a_file_that_changes_at_any_later_moment_is_refused_at_the_seal_and_never_padded(
    out: Path, change: Callable[[Path], None], moment: str, codec: str
) -> None:
    driver = GrowingDriver(growing(out, compression=codec))
    name = driver.sink.list_parts()[0]
    driver.run({name: rows(1, 2, 3)})
    driver.begin()
    with meanwhile(moment, lambda: change(out / name)):
        answers = driver.write({name: rows(4)})
    assert b"\0\0\0\0\0\0\0\0\0\0" not in b"".join(file.read_bytes() for file in out.glob("*") if file.is_file())
    before = everything(out)
    with pytest.raises(SealError, match=name):
        driver.seal(answers)
    # The epoch is run again, and the next BEGIN finds that recorded bytes are missing.
    with pytest.raises(TargetLostError, match=name):
        driver.begin()
    assert {path: before[path] for path in before if path.startswith(str(out / "part"))} == {
        path: data for path, data in everything(out).items() if path.startswith(str(out / "part"))
    }


def test_a_replacement_between_the_check_and_the_write_is_refused_at_the_seal(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    with meanwhile("file: writing", lambda: replace(out / PART, (out / PART).stat().st_size)):
        answers = driver.write({PART: rows(4)})
    with pytest.raises(SealError, match=PART):
        driver.seal(answers)


def test_a_file_without_recorded_bytes_is_written_again_after_it_was_truncated(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    driver.begin()
    with meanwhile("file: synced", lambda: truncate_elsewhere(out / PART)):
        answers = driver.write({PART: rows(1)})
    with pytest.raises(SealError):
        driver.seal(answers)
    driver.run({PART: rows(1)})
    assert ids(out) == [1]


def test_a_truncation_while_a_failed_attempt_is_cut_is_refused_and_leaves_no_padding(
    driver: GrowingDriver, out: Path
) -> None:
    driver.begin()
    driver.write({PART: rows(8, 9)})  # bytes to cut
    for _ in range(2):
        with (
            meanwhile("file: cutting", lambda: truncate_elsewhere(out / PART, 9)),
            pytest.raises(TargetLostError, match="holds 9 bytes"),
        ):
            driver.part(attempt=1)
        assert (out / PART).read_bytes() == b'{"id":1}\n'


def test_bytes_that_another_program_appends_in_mid_epoch_stop_the_attempt_and_are_not_written_over(
    driver: GrowingDriver, out: Path
) -> None:
    driver.begin()
    part = driver.part()
    with open(out / PART, "ab") as file:
        file.write(b"theirs\n")
    part.write_batch(rows(4))
    with pytest.raises(TransientError, match=r"(?i)another program appended"):
        part.snapshot()
    assert (out / PART).read_bytes().endswith(b"theirs\n")
    driver.run({PART: rows(4)})
    assert ids(out) == [1, 2, 3, 4]


def test_a_staged_file_that_is_truncated_while_it_is_written_is_not_published(out: Path) -> None:
    driver = WholeDriver(whole(out))
    driver.begin()
    file = driver.file()
    file.write_batch(rows(1, 2))
    for open_file in file._open.values():
        assert isinstance(open_file, WholeFile)
        open_file.spill()
        open_file.write_rest()
    (staged,) = (out / "_outfall/staging").iterdir()
    truncate_elsewhere(staged)
    file.write_batch(rows(3))
    committables = file.prepare_commit()
    assert b"\0" not in staged.read_bytes()
    with suppress(CommitError):
        driver.commit(committables)
    assert not [name for name in out.iterdir() if not name.name.startswith("_")]


def test_a_segment_that_is_truncated_after_it_was_closed_in_the_same_epoch_is_refused(out: Path) -> None:
    driver = GrowingDriver(growing(out, roll_bytes=1))
    driver.begin()
    part = driver.part()
    part.write_batch(rows(1))
    part.write_batch(rows(2))
    truncate_elsewhere(out / "part-00000_0000000000.jsonl", 3)
    with pytest.raises(TargetLostError, match=r"part-00000_0000000000\.jsonl holds 3 bytes"):
        part.snapshot()
    driver.run({PART: rows(1)})
    assert ids(out) == [1]


@pytest.mark.thorough
def test_a_real_logrotate_is_noticed_whichever_way_it_rotates(out: Path, tmp_path: Path) -> None:
    logrotate = program("logrotate")
    for way in ("copytruncate", "create", "nocreate"):
        driver = GrowingDriver(growing(out / way))
        driver.run({PART: rows(1)})
        driver.begin()
        part = driver.part()
        part.write_batch(rows(2))
        part.write_rest()
        config = tmp_path / f"{way}.conf"
        config.write_text(f"{out / way / PART} {{\n rotate 3\n su root root\n {way}\n}}\n")
        config.chmod(0o644)
        subprocess.run([logrotate, "-f", "-s", str(tmp_path / "state"), str(config)], check=True)
        before = everything(out / way)
        part.write_batch(rows(3))
        with pytest.raises(TargetLostError):
            part.snapshot()
        with pytest.raises(TargetLostError):
            driver.check()
        assert everything(out / way) == before
