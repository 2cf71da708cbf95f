"""Disks: errors at each `os` call of a sink, and power loss.

After a power loss, only synced data of the target directory remains.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from outfall.testing.conformance.driver import result_of_child
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import is_directory
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.stepping import at_step
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials
from outfall.testing.failing_calls import failing_call

SYNCS = {"fsync", "fdatasync"}


@check
def failing_system_calls(trials: Trials) -> None:
    """A full or failing disk loses or repeats rows, or a failed fsync counts as successful.

    Except in `add_post_commit_topology`: that work may fail without the epoch, whose rows are then safe.
    """
    trial = trials.new()
    trial.run_epochs(1)
    driver, content = trial.driver(), trial.bring(1)
    with failing_call(None) as count:
        trial.run(driver, content)
    trials.needs(bool(count.calls), "the sink does not use the module os")
    for (number, name), error in trials.chosen(product(enumerate(count.calls, 1), (errno.EIO, errno.ENOSPC))):
        trial = trials.new()
        trial.run_epochs(1)
        with when(f"call {number} of an epoch, os.{name}, failed with {errno.errorcode[error]}"):
            _run_with_fault(trial, trial.bring(1), number, error)
            trial.verify()
            trial.finish(1)


def _run_with_fault(trial: Trial, content: Content, number: int, error: int) -> None:
    driver = trial.driver()
    with failing_call(number, error) as count:
        try:
            trial.run(driver, content)
        except Exception:
            return
    if count.failed in SYNCS and "add_post_commit_topology" not in count.callers:
        raise ConformanceError(
            "an fsync failed, but the epoch completed",
            do="fail the attempt on an fsync error: the data may be lost, and a second fsync does not report it"
            " (fsync(2))",
        )


PUBLISHED = "after COMPLETED"
MOMENTS: tuple[str, ...] = ("after PREPARED", "before COMPLETED", PUBLISHED)
"""Times of the power loss: after the task results are recorded, and after the epoch is published."""

Tree = dict[str, bytes | None]
"""Path → content of a file, or `None` for a directory."""


@check
def loss_of_power(trials: Trials) -> None:
    """A task or the driver reports success before its data is durable. A power loss loses rows."""
    trials.needs_to_try(hasattr(os, "fork"), "this system has no fork()")
    for moment in MOMENTS:
        trial = trials.new(durable_log=True)
        root = _root(trial)
        contents = [trial.bring(0), trial.bring(1)]
        with when(f"the machine lost power {moment} of epoch 1"):
            left = result_of_child(partial(_lost_at, moment, trial, contents, root))
            trials.needs(bool(left.files), "no file was written to the target directory")
            trials.needs_to_try(
                left.seen,
                f"os.fsync was never called, and in {root} syncs by other code are not visible: use a directory"
                " on a disk, for example with pytest's --basetemp",
            )
            _restore(root, left.durable)
            trial.counted[0] = [contents[0].numbers]
            if moment == PUBLISHED:
                trial.counted[1] = [contents[1].numbers]
            try:
                trial.finish(max(1, trial.epoch))
            except ConformanceError as fault:
                if not left.unsynced:
                    raise
                raise ConformanceError(
                    f"{fault.fault}; not synced were {', '.join(left.unsynced)}",
                    do="before prepare_commit, snapshot or commit returns, fsync all written files and each"
                    " directory in which a name was created or changed",
                ) from fault


@dataclass
class _Left:
    """The state after a power loss."""

    durable: Tree
    files: list[str]
    """The existing files."""
    unsynced: list[str]
    """Lost or changed files."""
    seen: bool
    """Whether syncs were visible."""


def _root(trial: Trial) -> Path:
    return Path(trial.target) if is_directory(trial.target) else trial.directory / "target"


def _lost_at(moment: str, trial: Trial, contents: list[Content], root: Path) -> _Left:
    """Run one epoch and a second one up to a step, and return the state after a power loss."""
    left: list[_Left] = []
    disk = _Disk(root)

    def look() -> None:
        left.append(disk.left())
        raise _PowerLostError

    with disk.watched():
        driver = trial.driver()
        trial.run(driver, contents[0])
        try:
            with at_step(moment, look):
                trial.run(driver, contents[1])
        except _PowerLostError:
            pass
    return left[0] if left else disk.left()


class _PowerLostError(BaseException):
    pass


@dataclass
class _Disk:
    """The durable state of a directory: file contents and directory entries as of their last sync.

    It intercepts syncs through `os`. For a file without such a sync, it asks the kernel for dirty pages, to detect
    syncs by C code.
    """

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    syncs: int = 0
    one_call: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._keep_all()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Intercept `os` calls that sync data or free an inode."""
        originals = {name: getattr(os, name) for name in _CALLS if hasattr(os, name)}
        for name, original in originals.items():
            setattr(os, name, self._seeing(name, original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)

    def _seeing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            # A sink may sync in threads, which must not change the directory while it is read.
            with self.one_call:
                result = original(*args, **options)
                if name == "sync":
                    self._keep_all()
                elif name in {"fsync", "fdatasync"}:
                    self._keep(os.fstat(args[0] if isinstance(args[0], int) else args[0].fileno()).st_ino)
                else:
                    self._forget_removed()
            return result

        return call

    def _keep_all(self) -> None:
        for number, path in _inodes(self.root).items():
            self._keep_path(number, path)

    def _keep(self, number: int) -> None:
        if path := _inodes(self.root).get(number):
            self.syncs += 1
            self._keep_path(number, path)

    def _keep_path(self, number: int, path: Path) -> None:
        if path.is_dir():
            self.names[number] = {item.name: item.inode() for item in os.scandir(path)}
        else:
            self.contents[number] = path.read_bytes()

    def _forget_removed(self) -> None:
        """Forget a freed inode number, which the next file may reuse."""
        there = _inodes(self.root)
        self.contents = {
            number: data for number, data in self.contents.items() if number in there or self._named(number)
        }

    def _named(self, number: int) -> bool:
        """Whether a removed file would reappear, because its directory was not synced since."""
        return any(number in names.values() for names in self.names.values())

    def left(self) -> _Left:
        """Return the state after a power loss at this moment."""
        now = _inodes(self.root)
        unclear = [(number, path) for number, path in now.items() if path.is_file() and not self._is_kept(number, path)]
        dirty = {number: _is_dirty(path) for number, path in unclear}
        for number, path in unclear:
            if dirty[number] is False:
                self.contents[number] = path.read_bytes()
        if not self.syncs:
            # C code that syncs a file is assumed to sync its directory too, which is not visible.
            self._keep_names()
        durable: Tree = {}
        self._collect(os.stat(self.root).st_ino, Path(), durable)
        there = {os.fspath(path.relative_to(self.root)): path for path in now.values() if path != self.root}
        files = [name for name, path in there.items() if path.is_file()]
        unsynced = [name for name in files if name not in durable or durable[name] != there[name].read_bytes()]
        seen = self.syncs > 0 or None not in dirty.values()
        return _Left(durable, files, sorted(unsynced), seen)

    def _is_kept(self, number: int, path: Path) -> bool:
        return number in self.contents and self.contents[number] == path.read_bytes()

    def _keep_names(self) -> None:
        for number, path in _inodes(self.root).items():
            if path.is_dir():
                self._keep_path(number, path)

    def _collect(self, directory: int, path: Path, durable: Tree) -> None:
        for name, number in self.names.get(directory, {}).items():
            place = path / name
            if number in self.names:
                durable[os.fspath(place)] = None
                self._collect(number, place, durable)
            else:
                durable[os.fspath(place)] = self.contents.get(number, b"")


_CALLS = ("fsync", "fdatasync", "sync", "unlink", "remove", "rename", "replace", "rmdir")


def _inodes(root: Path) -> dict[int, Path]:
    """Return a directory and everything below it by inode number."""
    found = {os.stat(root).st_ino: root}
    for directory, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = Path(directory) / name
            found[path.lstat().st_ino] = path
    return found


def _restore(root: Path, tree: Tree) -> None:
    """Restore a directory to exactly this state."""
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, data in sorted(tree.items()):
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)


def _is_dirty(path: Path) -> bool | None:
    """Whether a file has dirty pages; `None` if unknown, as for a file in memory."""
    size = path.stat().st_size
    if sys.platform != "linux" or _is_in_memory(path):
        return None
    if not size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        sum(mapped[at] for at in range(0, size, mmap.PAGESIZE))
        return _dirty_kilobytes(os.fstat(file.fileno()).st_ino) > 0


def _dirty_kilobytes(number: int) -> int:
    """Count dirty pages of a file's mappings in /proc/self/smaps."""
    kilobytes, of_file = 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                of_file = words[4] == str(number)
            elif of_file and words[0] in {"Shared_Dirty:", "Private_Dirty:"}:
                kilobytes += int(words[1])
    return kilobytes


def _is_in_memory(path: Path) -> bool:
    """Whether a file is on a memory filesystem, which never writes pages out."""
    place, best, kind = os.path.realpath(path), "", ""
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            mount, mounted = line.split()[1:3]
            mount = mount.encode().decode("unicode_escape")
            if len(mount) > len(best) and (place == mount or place.startswith(mount.rstrip("/") + "/")):
                best, kind = mount, mounted
    return kind in {"tmpfs", "ramfs"}
