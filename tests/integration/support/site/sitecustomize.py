"""Python imports this in every process that has this folder on its path: it lets tests kill or stop Spark's processes.

`$OUTFALL_TEST_CRASH_ORDER` names a file. The first process that reaches the step in it takes the file away, and then
dies (`kill <step>`), leaves its id in `<file>.told` and goes on (`tell <step>`), or leaves it in `<file>.stopped` and
stops until somebody continues it (`stop <step>`).
"""

from __future__ import annotations

import os
import signal


def _watch(order: str) -> None:
    from outfall.steps import listen

    def obey(step: str) -> None:
        try:
            with open(order) as file:
                command, _, wanted = file.read().partition(" ")
            if wanted != step:
                return
            os.rename(order, f"{order}.{os.getpid()}")  # one process only
        except FileNotFoundError:
            return
        if command == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        with open(f"{order}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{order}.new", f"{order}.told" if command == "tell" else f"{order}.stopped")
        if command == "tell":
            return
        os.kill(os.getpid(), signal.SIGSTOP)
        with open(f"{order}.continued", "w"):
            pass

    listen(obey)


if "OUTFALL_TEST_CRASH_ORDER" in os.environ:
    _watch(os.environ["OUTFALL_TEST_CRASH_ORDER"])
