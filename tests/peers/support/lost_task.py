"""A task in the middle of its COPY, whose host is cut off. Run by tests, never imported.

Usage: lost_task.py <file with a pickled sink, the location of the log, and a ticket>
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outfall.testing import LocalDriver

ROWS = 200_000
"""More than the client and the server keep in memory, before they send and store them."""


def rows() -> Iterator[tuple[str, list[Any]]]:
    yield "0", [{"id": number, "name": "n"} for number in range(ROWS)]
    print("copying", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sink, recovery, ticket = pickle.loads(Path(sys.argv[1]).read_bytes())
    LocalDriver(sink, recovery).run_task(ticket, 0, 0, rows())
