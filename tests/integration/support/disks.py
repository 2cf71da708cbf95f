"""Small disks that fill up, turn read-only and lose their power; and the rights and limits of a lesser process.

Every disk is unmounted when its block is left, on errors too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_EXT4_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_NOBODY = 65534


@dataclass(frozen=True)
class Memory:
    """A tmpfs."""

    path: Path

    def remount(self, options: str) -> None:
        """Change its size, or whether it can be written."""
        _run("mount", "-o", f"remount,{options}", str(self.path))

    def fill(self) -> None:
        """Leave no page free."""
        with open(self.path / "filler", "ab", buffering=0) as file:
            for size in (1 << 16, 1):
                _write_until_full(file.fileno(), b"x" * size)


@dataclass(frozen=True)
class Disk:
    """An ext4 filesystem on an image, mounted through a loop device."""

    image: Path
    path: Path

    def cut_power(self) -> None:
        """Lose, as a power loss does, what has not reached the disk. Nothing works afterwards until `restart`."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Mount what is on the disk."""
        _run("umount", str(self.path))
        self.mount()

    def mount(self) -> None:
        """Mount the image."""
        # No commit by age: what is durable must not depend on how slow the test is.
        _run("mount", "-o", "loop,commit=3600", str(self.image), str(self.path))


@contextmanager
def memory_disk(path: Path, options: str) -> Iterator[Memory]:
    """Mount a tmpfs, or skip the test."""
    path.mkdir()
    _or_skip("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    try:
        yield Memory(path)
    finally:
        _unmount(path)


@contextmanager
def loop_disk(path: Path) -> Iterator[Disk]:
    """Mount a new ext4, or skip the test."""
    disk = Disk(path.with_suffix(".img"), path)
    path.mkdir()
    with open(disk.image, "wb") as image:
        image.truncate(16 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4 (Debian: e2fsprogs)")
    _run("mkfs.ext4", "-q", "-F", str(disk.image))
    _or_skip("mount", "-o", "loop,commit=3600", str(disk.image), str(path))
    try:
        yield disk
    finally:
        _unmount(path)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be nobody, if this process is root."""
    if os.getuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    # The saved id stays root's, so that there is a way back.
    os.setresuid(_NOBODY, _NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setgroups(groups)


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """Set what `ulimit -f` sets."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _write_until_full(fd: int, data: bytes) -> None:
    while True:
        try:
            os.write(fd, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def _or_skip(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        what = "loop devices" if "loop" in command[2] else "mounts"
        why = (done.stderr.splitlines() or ["it failed"])[0]
        pytest.skip(f"needs root and {what}, as .ci/run has them: {why}")


def _unmount(path: Path) -> None:
    # Lazily when something still uses it: a failed test must not leave a mount behind.
    if subprocess.run(["umount", str(path)], check=False, capture_output=True).returncode:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
