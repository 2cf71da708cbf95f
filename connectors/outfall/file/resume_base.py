"""What growing parts held before we wrote into them, where `on_existing="resume"` kept it.

The recovery data says so too, from the BEGIN on that found it. A copy of it that is older than that BEGIN does not.
"""

from __future__ import annotations

import json
import os

from pydantic import ValidationError

from outfall.file.append_partition import FileState
from outfall.file.disk import sync_directory
from outfall.file.flock import peek, write_line
from outfall.file.layout import Layout


def record_kept(layout: Layout, incarnation: str, part: str, base: FileState) -> None:
    """Write, durably, where we begin in a part: in its lock file, which is never removed."""
    fd = os.open(layout.lock(part), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        write_line(fd, json.dumps({"incarnation": incarnation, "offset": base.offset, "segment": base.segment}))
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(layout.sidecar)


def find_kept(layout: Layout, incarnation: str, part: str) -> FileState | None:
    """Return where we began in a part; `None` where it held nothing."""
    try:
        found = json.loads(peek(layout.lock(part)) or "{}")
        if found.get("incarnation") == incarnation:
            return FileState(offset=found["offset"], segment=found["segment"])
    except (ValueError, KeyError, AttributeError, ValidationError):
        pass
    return None
