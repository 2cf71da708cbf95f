"""Disks that are full, read-only, broken or without power, and users who may not write: no row is lost or doubled.

These are real faults: a tmpfs that fills up, an ext4 whose power is cut, system calls that strace makes fail. After
each one the same epoch runs again with another content, which counts when the fault came before PREPARED; otherwise
the recorded one does. Either way the files hold the rows of exactly one of the two, each once.

Mounts need root, and the injected errors need strace (Debian: strace); without them those tests say so and are skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from tests.disks import Memory, longest_file, loop_disk, memory_disk, unprivileged
from tests.integration.support.each_call import CALLS, WHEN
from tests.integration.support.file_epochs import BY_SPARK, MODES, ROLLING, ROWS, FileEpochs, at, content
from tests.integration.support.power import Powered, PowerLoss, steps_with_effects
from tests.programs import absent, program

SUPPORT = Path(__file__).parents[1] / "support"
PATH = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]))
"""Where the scripts, which are no part of pytest, find `tests`."""

pytestmark = pytest.mark.faults


@pytest.fixture(params=MODES)
def files(tmp_path: Path, request: pytest.FixtureRequest) -> FileEpochs:
    """A step on the ordinary disk, with one epoch completed."""
    files = FileEpochs(request.param, tmp_path / "out", tmp_path / "chk")
    files.run(0, "a")
    return files


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    """A disk of 1 MiB."""
    with memory_disk(tmp_path / "memory", "size=1m") as memory:
        yield memory


def finishes(files: FileEpochs) -> None:
    """Run the failed epoch 1 with another content, and one more; each row must be there once."""
    recorded = files.recorded(1)
    files.run(1, "b")
    files.run(2, "a")
    assert files.found() == content({0: "a", 1: "a" if recorded else "b", 2: "a"})
    assert files.staged() == []


# --- no space


@pytest.mark.parametrize("mode", MODES)
def test_a_full_target_fails_the_epoch_and_more_space_lets_it_run(memory: Memory, tmp_path: Path, mode: str) -> None:
    files = FileEpochs(mode, memory.path / "out", tmp_path / "chk")
    files.run(0, "a")
    large = replace(files, pad=1 << 20)
    driver = large.driver()
    for _ in range(2):
        with pytest.raises(
            TransientError, match=r"writing .*/out/.* failed.*No space left.*free space there"
        ) as caught:
            large.run(1, "a", driver)
        assert str(memory.path) in str(caught.value)
        assert files.staged() == []
    assert files.entries()[-1] == ("begin", 1)
    memory.remount("size=32m")
    large.run(1, "b", driver)
    large.run(2, "a")
    assert files.found() == content({0: "a", 1: "b", 2: "a"})


@pytest.mark.parametrize("mode", MODES)
def test_a_target_without_inodes_cannot_be_opened_until_there_are_some(tmp_path: Path, mode: str) -> None:
    with memory_disk(tmp_path / "memory", "nr_inodes=3") as memory:
        files = FileEpochs(mode, memory.path / "out", tmp_path / "chk")
        with pytest.raises(TransientError, match=r"/out failed.*free space there"):
            files.run(0, "a")
        memory.remount("nr_inodes=100")
        files.run(0, "b")
        assert files.found() == content({0: "b"})


@pytest.mark.parametrize("step", ["before BEGIN", "before PREPARED", "after PREPARED", "before COMPLETED"])
@pytest.mark.parametrize("mode", MODES)
def test_a_log_that_is_full_at_any_entry_fails_the_epoch_and_more_space_lets_it_run(
    memory: Memory, tmp_path: Path, mode: str, step: str
) -> None:
    files = FileEpochs(mode, tmp_path / "out", memory.path / "chk")
    files.run(0, "a")
    with at(step, memory.fill), pytest.raises(TransientError, match=r"appending recovery entry .*free space") as caught:
        files.run(1, "a")
    assert str(memory.path) in str(caught.value)
    assert files.recorded(1) == (step in {"after PREPARED", "before COMPLETED"})
    with pytest.raises(TransientError, match="free space"):
        files.run(1, "a")
    assert list(files.recovery.rglob(".tmp-*")) == []
    memory.remount("size=2m")
    finishes(files)


# --- limits and rights


def test_a_file_above_the_size_limit_fails_the_epoch(files: FileEpochs) -> None:
    large = replace(files, pad=1 << 20)
    with longest_file(1 << 20), pytest.raises(TransientError, match=r"writing .*File too large.*ulimit -f") as caught:
        large.run(1, "a")
    assert str(files.target) in str(caught.value)
    assert not files.recorded(1)
    finishes(files)


@pytest.mark.thorough
@pytest.mark.parametrize(("soft", "hard", "status"), [(64, 4096, 0), (64, 64, 3)])
def test_more_parts_than_open_files_raise_the_own_limit_or_say_so(
    tmp_path: Path, soft: int, hard: int, status: int
) -> None:
    def run(epoch: int, *limits: int) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in (tmp_path, 200, epoch, *limits)]
        command = [sys.executable, str(SUPPORT / "one_task.py"), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    failed = run(0, soft, hard)
    assert failed.returncode == status, failed.stderr
    if status:
        assert "Too many open files. What to do: raise the limit of open files (ulimit -n)" in failed.stderr
        assert f"{tmp_path}/out/part-" in failed.stderr
        assert run(0, 1024, 1024).returncode == 0
    assert run(1, 1024, 1024).returncode == 0
    lines = [file.read_text() for file in (tmp_path / "out").glob("part-*")]
    assert lines == ['{"epoch":0}\n{"epoch":1}\n'] * 200


@pytest.mark.parametrize(
    ("mode", "step"),
    [*((mode, step) for mode in MODES for step in ("before BEGIN", "after BEGIN")), ("whole", "after PREPARED")],
)
def test_a_target_that_turns_read_only_fails_the_epoch(memory: Memory, tmp_path: Path, mode: str, step: str) -> None:
    files = FileEpochs(mode, memory.path / "out", tmp_path / "chk")
    files.run(0, "a")
    with at(step, lambda: memory.remount("ro")), pytest.raises(TransientError, match=r"/out.*mount it for writing"):
        files.run(1, "a")
    assert files.recorded(1) == (step == "after PREPARED")
    memory.remount("rw")
    finishes(files)


@pytest.mark.parametrize("mode", MODES)
def test_a_target_that_is_read_only_is_refused_before_anything_is_recorded(
    memory: Memory, tmp_path: Path, mode: str
) -> None:
    files = FileEpochs(mode, memory.path / "out", tmp_path / "chk")
    files.run(0, "a")
    before = files.entries()
    memory.remount("ro")
    with pytest.raises(TargetError, match=r"/out is not writable.*mount it for writing"):
        files.run(1, "a")
    assert files.entries() == before
    memory.remount("rw")
    finishes(files)


@pytest.mark.parametrize("step", ["before BEGIN", "before PREPARED", "before COMPLETED"])
@pytest.mark.parametrize("mode", MODES)
def test_a_log_that_turns_read_only_fails_the_epoch(memory: Memory, tmp_path: Path, mode: str, step: str) -> None:
    files = FileEpochs(mode, tmp_path / "out", memory.path / "chk")
    files.run(0, "a")
    with at(step, lambda: memory.remount("ro")), pytest.raises(ConfigurationError, match="can write") as caught:
        files.run(1, "a")
    assert str(memory.path) in str(caught.value)
    assert files.recorded(1) == (step == "before COMPLETED")
    memory.remount("rw")
    finishes(files)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that everybody may enter: those of pytest are their owner's alone."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


@contextmanager
def write_protected(place: Path) -> Iterator[None]:
    """Let nobody create files in a directory, and be nobody."""
    os.chmod(place, 0o555)
    try:
        with unprivileged():
            yield
    finally:
        os.chmod(place, 0o755)


@pytest.mark.parametrize("mode", MODES)
def test_a_user_who_may_not_write_is_told_so(open_place: Path, mode: str) -> None:
    files = FileEpochs(mode, open_place / "out", open_place / "chk")
    files.run(0, "a")
    before = files.entries()
    with write_protected(files.target), pytest.raises(TargetError, match=r"/out is not writable.*owner or mode"):
        files.run(1, "a")
    with (
        write_protected(files.recovery / "outfall" / "sink"),
        pytest.raises(ConfigurationError, match=r"/chk/outfall/sink.*can write"),
    ):
        files.recovery_log().append(b"{}", after=len(before))
    assert files.entries() == before
    finishes(files)


# --- errors of single calls


OTHER_CALLS = tuple(call for call in CALLS if call != "fsync")


@pytest.fixture(
    scope="module",
    params=[
        ("whole", "fsync"),
        pytest.param(("growing", "fsync"), marks=pytest.mark.thorough),
        *(pytest.param((mode, *OTHER_CALLS), marks=pytest.mark.thorough) for mode in MODES),
        # Other calls are those of Spark.
        pytest.param((BY_SPARK, "fsync", "rename"), marks=pytest.mark.thorough),
    ],
    ids="-".join,
)
def broken_calls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What comes of it when any one call of two epochs fails with EIO, by kind of call."""
    strace = _strace()
    directory = tmp_path_factory.mktemp("calls")
    mode, *kinds = request.param
    calls = ",".join(CALLS.values())
    inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO:when={WHEN}"]
    script = [sys.executable, str(SUPPORT / "each_call.py"), mode, str(directory), *kinds]
    done = subprocess.run(
        [*strace, *inject, *script],
        env={**os.environ, "PYTHONPATH": PATH},
        check=False,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()
    return mode, json.loads(done.stdout)


def _strace() -> list[str]:
    command = [program("strace"), "-f", "--seccomp-bpf", "-o", "/dev/null"]
    done = subprocess.run([*command, "true"], check=False, capture_output=True)
    if done.returncode:
        absent(f"the right to trace processes: {done.stderr.decode().strip()}")
    return command


LEAST = {"fsync": 25, "write": 6, "writev": 4, "pwrite": 3, "pwritev": 0, "rename": 1, "link": 6}
"""How many calls of each kind two epochs make at least, so that a test that fails none is noticed."""


@pytest.mark.thorough
def test_no_call_fails_unnoticed_and_every_epoch_is_whole_afterwards(broken_calls: Any) -> None:
    for call, of_call in broken_calls[1].items():
        assert len(of_call) >= LEAST[call]
        for outcome in of_call:
            # Twice tried and once succeeded would be no error at all.
            assert len(outcome["errors"]) == 1 or _only_clean_up_failed(outcome), outcome
            assert outcome["found"] == {
                epoch: [[name, row] for row in range(ROWS)] for epoch, name in outcome["expected"].items()
            }, outcome


def test_every_error_names_the_path_and_what_to_do(broken_calls: Any) -> None:
    for call, of_call in broken_calls[1].items():
        for outcome in of_call:
            for text in outcome["errors"]:
                place = rf"{call}/{outcome['number']}/(out|chk)"
                assert re.search(rf"^TransientError: .*{place}.* failed\..*Input/output error.*check that", text), text


def _only_clean_up_failed(outcome: dict[str, Any]) -> bool:
    return outcome["errors"] == [] and ["cleaning up the log failed" in text for text in outcome["warnings"]] == [True]


# --- power


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Powered]:
    """Two disks, since what is synced on one ext4 takes everything before it along."""
    place = tmp_path_factory.mktemp("disks")
    # Their images in memory: what is durable on them is so at once, however busy the machine's own disk is.
    with (
        memory_disk(place / "images", "size=40m") as images,
        loop_disk(images.path / "target") as target,
        loop_disk(images.path / "log") as log,
    ):
        yield Powered(target, log)


@pytest.mark.parametrize(
    ("mode", "epoch"),
    [
        ("whole", 1),
        *(
            pytest.param(mode, epoch, marks=pytest.mark.thorough)
            for mode, epoch in itertools.product([*MODES, ROLLING, BY_SPARK], [0, 1])
            if (mode, epoch) != ("whole", 1)
        ),
    ],
)
def test_a_power_loss_at_any_step_takes_nothing_that_was_recorded(
    disks: Powered, tmp_path: Path, mode: str, epoch: int
) -> None:
    problems = {}
    steps = steps_with_effects(mode, tmp_path, epoch)
    assert {"log: linked#2", "log: directory synced#2", "file: synced#2", "after COMPLETED"} <= set(steps)
    assert ("file: segment begun#2" in steps) == (mode == ROLLING and epoch == 1)
    for step in steps:
        try:
            PowerLoss(disks, mode).at(epoch, step).check()
        except (AssertionError, OutfallError, ValueError) as error:
            problems[step] = repr(error)
    assert problems == {}


# What is not synced. Of a name that is synced before or after a file beside it, ext4 cannot show that it is missing: it
# makes both durable together. So no control drops the sync of new names alone; tests/unit asserts its order.
ALL, LOG_ENTRIES, LOG_NAMES, DATA, PUBLICATIONS = ".", "/[.]tmp-", "/outfall/sink$", "/part-", "/(out|staging)$"
RECORD = "/_outfall/[0-9a-f]+[.]json$"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "unsynced", "step"),
    [
        *itertools.product([*MODES, BY_SPARK], [ALL, DATA], ["after PREPARED", "after COMPLETED"]),
        *itertools.product(MODES, [LOG_NAMES], ["after BEGIN", "after PREPARED", "after COMPLETED"]),
        *itertools.product(MODES, [LOG_ENTRIES], ["after PREPARED"]),
        ("whole", PUBLICATIONS, "after COMPLETED"),
        ("whole", RECORD, "after COMPLETED"),
    ],
)
def test_without_its_fsyncs_the_same_power_loss_loses_something(
    disks: Powered, mode: str, unsynced: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if not re.search(unsynced, os.readlink(f"/proc/self/fd/{fd}")):
            real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        loss = PowerLoss(disks, mode).at(1, step)
    with pytest.raises((AssertionError, OutfallError, ValueError)):
        loss.check()
