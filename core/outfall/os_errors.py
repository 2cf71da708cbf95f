"""What to do about an operating system's error: said alike by the log and by sinks that write to disks."""

from __future__ import annotations

import errno

_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or have the quota raised",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of the process that writes",
    errno.ENFILE: "raise the host's limit of open files (sysctl fs.file-max)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or use a filesystem that takes larger files",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "correct its owner or mode",
    errno.EPERM: "correct its owner, mode or attributes",
}


def remedy(error: OSError) -> str:
    """Return what the reader of the error can do, as the beginning of a sentence."""
    return _REMEDIES.get(error.errno or 0, "look at that filesystem")
