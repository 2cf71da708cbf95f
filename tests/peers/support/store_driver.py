"""A driver of its own that writes epochs with whole files in an object store, and dies (-9) at a step if told.

`python -m tests.peers.support.store_driver URL LOG EPOCHS [STEP]`
"""

from __future__ import annotations

import os
import signal
import sys

from outfall.file import FileSink
from outfall.testing import LocalDriver
from outfall.trace_points import listen


def main(url: str, log: str, epochs: str, step: str = "") -> None:
    """Write the first epochs; those that the log has as completed are skipped."""

    def die(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    listen(die)
    for epoch in range(int(epochs)):
        LocalDriver(FileSink(url), log).run_epoch(epoch, [[{"id": 2 * epoch}], [{"id": 2 * epoch + 1}]])


if __name__ == "__main__":
    main(*sys.argv[1:])
