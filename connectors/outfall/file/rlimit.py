"""The process's limit of open files."""

from __future__ import annotations

import resource
from contextlib import suppress

_OTHERS = 256
"""What a task has open beside its parts: sockets, libraries, locks."""


def allow_open_files(count: int) -> None:
    """Raise this process's own limit so that `count` parts may be open, as far as the host's administrator lets it.

    The usual limit of 1,024 guards only programs that call `select`; where more is needed than is allowed, opening a
    part says so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
