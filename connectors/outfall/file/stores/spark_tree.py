"""What Spark's writer leaves in a directory on a disk: its files with their lengths, moved out of it, and removed."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import zlib

from outfall.storage.names import is_hidden


def local_tree(root: str) -> list[tuple[str, int]]:
    """Return each file below a directory, relative to it, with its length, without hidden files.

    Raises `OSError` for a link, which Spark does not create, and for a file that does not have the length that Spark
    gave it.
    """
    found = []
    for place, directories, files in os.walk(root):
        directories[:] = [name for name in directories if not is_hidden(name)]
        paths = [f"{place}/{name}" for name in files if not is_hidden(name)]
        for path in (*paths, *(f"{place}/{name}" for name in directories)):
            if os.path.islink(path):
                raise OSError(errno.ELOOP, f"{path} is a symbolic link, which Spark does not create")
        found += [(os.path.relpath(path, root), _checked_size(path)) for path in paths]
    return sorted(found)


def adopt_local(path: str, to: str, size: int) -> None:
    """Make a file durable and move it. Raises `OSError` if it does not have this length any more, or is a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
        found = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if found != size:
        raise OSError(errno.EIO, f"{path} has {found} bytes, but had {size} when it was listed")
    os.rename(path, to)


def remove_local_tree(path: str) -> bool:
    """Remove a directory and all that is in it; return whether it existed. A link is removed, and not followed."""
    if os.path.islink(path):
        os.unlink(path)
        return True
    existed = os.path.isdir(path)
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):
        # A late task has added files meanwhile, or there is an error to report.
        shutil.rmtree(path)
    return existed


_SUMS = struct.Struct(">4si")
_SUM = struct.Struct(">I")


def _checked_size(path: str) -> int:
    """Return the length of a file. Raises `OSError` if Hadoop's checksum file next to it belongs to another length.

    Hadoop writes the CRC-32 of each 512 bytes to a hidden file (`org.apache.hadoop.fs.ChecksumFileSystem`). Their
    number and the last one tell the length; the others would take a read of the whole file.
    """
    size = os.lstat(path).st_size
    try:
        with open(f"{os.path.dirname(path)}/.{os.path.basename(path)}.crc", "rb") as sums:
            head = sums.read(_SUMS.size)
            length = sums.seek(0, os.SEEK_END)
            sums.seek(max(_SUMS.size, length - _SUM.size))
            last = sums.read()
    except FileNotFoundError:  # a session may do without them
        return size
    magic, chunk = _SUMS.unpack(head) if len(head) == _SUMS.size else (b"", 0)
    if magic != b"crc\0" or chunk <= 0:
        return size
    count = -(-size // chunk)
    fits = length == _SUMS.size + _SUM.size * count
    if fits and count:
        with open(path, "rb") as file:
            file.seek((count - 1) * chunk)
            fits = _SUM.pack(zlib.crc32(file.read())) == last
    if not fits:
        raise OSError(errno.EIO, f"{path} has {size} bytes, and its checksums belong to another length")
    return size
