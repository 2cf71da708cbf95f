"""Small real disks that fill up, become read-only or lose power. They require root and mounts.

Every disk is unmounted at the end of its block, also after errors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outfall.testing.conformance.faults import NotApplicableError

_EXT4_SHUTDOWN = 0x8004587D
_LOG_FLUSH = 1
_NO_LOG_FLUSH = 2
_LOOP = "loop,commit=3600"
"""No commit by age: durability must not depend on the speed of the test."""


@dataclass(frozen=True)
class MemoryDisk:
    """A tmpfs."""

    path: Path

    def remount(self, options: str) -> None:
        """Change the size (`"size=2m"`) or make the disk read-only (`"ro"`)."""
        _run("mount", "-o", f"remount,{options}", str(self.path))

    def fill(self) -> None:
        """Leave no page free."""
        with open(self.path / "filler", "ab", buffering=0) as file:
            for size in (1 << 16, 1):
                _write_until_full(file.fileno(), b"x" * size)


@dataclass(frozen=True)
class LoopDisk:
    """An ext4 filesystem in an image, mounted through a loop device."""

    image: Path
    path: Path

    def cut_power(self, *, names_reach_disk: bool = False) -> None:
        """Simulate a power loss: drop all data that is not on the disk. The disk fails until `restart`.

        If `names_reach_disk`, the journal reaches the disk at the last moment. Then names and lengths survive, but
        unsynced content does not.
        """
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_SHUTDOWN, struct.pack("I", _LOG_FLUSH if names_reach_disk else _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Mount the disk again."""
        _run("umount", str(self.path))
        _run("mount", "-o", _LOOP, str(self.image), str(self.path))


@contextmanager
def memory_disk(path: Path, options: str) -> Iterator[MemoryDisk]:
    """Mount a tmpfs on a new directory.

    Args:
        path: the directory.
        options: for example `"size=1m"` for a disk that fills up, or `"nr_inodes=50"`.

    Raises:
        NotApplicableError: this process has no permission to mount.
    """
    path.mkdir()
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(path))
    try:
        yield MemoryDisk(path)
    finally:
        _unmount(path)


@contextmanager
def loop_disk(path: Path, *, size: int = 16 << 20) -> Iterator[LoopDisk]:
    """Mount a new ext4 filesystem of the given size on a new directory. Its image is stored next to it.

    Raises:
        NotApplicableError: this process has no permission to mount, or mkfs.ext4 is missing.
    """
    disk = LoopDisk(path.with_suffix(".img"), path)
    path.mkdir()
    with open(disk.image, "wb") as image:
        image.truncate(size)
    if shutil.which("mkfs.ext4") is None:
        raise NotApplicableError("requires mkfs.ext4 (Debian: e2fsprogs)")
    _run("mkfs.ext4", "-q", "-F", str(disk.image))
    _mount("-o", _LOOP, str(disk.image), str(path))
    try:
        yield disk
    finally:
        _unmount(path)


def _write_until_full(fd: int, data: bytes) -> None:
    while True:
        try:
            os.write(fd, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        what = "loop devices" if "loop" in arguments[1] else "mounts"
        why = (done.stderr.splitlines() or ["it failed"])[0]
        raise NotApplicableError(f"needs root and {what}: {why}")


def _unmount(path: Path) -> None:
    # Lazy unmount for busy disks: a failed test must not leave a mount behind.
    if subprocess.run(["umount", str(path)], check=False, capture_output=True).returncode:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
