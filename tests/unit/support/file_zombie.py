"""A process that writes a part and stops itself: `python -m tests.unit.support.file_zombie PATH WHERE TOKEN`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from outfall.file.growing.part_files import FileState
from outfall.trace_points import listen
from tests.unit.support.file_target import GrowingDriver, growing


def stop_at(step: str) -> None:
    if step == sys.argv[2]:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    sink = growing(Path(sys.argv[1]))
    states = {name: FileState(offset=0) for name in sink.list_parts()}
    driver = GrowingDriver(sink, generation=1, states=states, begun={1: sys.argv[3]})
    part = driver.part(attempt=1)
    part.write_batch([{"id": 99}])
    listen(stop_at)
    stop_at("between writes")
    try:
        part.snapshot()
    except Exception as error:
        print(type(error).__name__, flush=True)
    else:
        print("wrote", flush=True)


if __name__ == "__main__":
    main()
