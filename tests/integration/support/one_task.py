"""One task that writes all parts of an epoch: `python one_task.py <directory> <parts> <epoch> <soft> <hard>`.

The last two are what `ulimit -n` sets.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from outfall.errors import OutfallError
from outfall.file import FileSink
from outfall.testing import LocalDriver


def main(directory: Path, parts: int, epoch: int, limits: tuple[int, int]) -> int:
    """Run the epoch, and say on standard error why it failed."""
    sink = FileSink(directory / "out", parts=parts)
    driver = LocalDriver(sink, str(directory / "chk"))
    coordinator = driver.coordinator()
    ticket = coordinator.begin(epoch)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        answer = driver.run_task(ticket, epoch, 0, [(part, [{"epoch": epoch}]) for part in sink.list_parts()])
        coordinator.finish(ticket, [answer])
    except OutfallError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    where, count, number, soft, hard = sys.argv[1:]
    sys.exit(main(Path(where), int(count), int(number), (int(soft), int(hard))))
