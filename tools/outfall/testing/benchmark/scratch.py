"""Directories that last for one run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self


class Scratch:
    """Hands out new directories and removes them. A context manager, which leaves nothing behind."""

    def __init__(self, below: str | None = None) -> None:
        """Make everything below a directory; below the system's for temporary files if none is given."""
        self._root = Path(tempfile.mkdtemp(prefix="outfall-benchmark-", dir=below))
        self._count = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove everything."""
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def rows(self) -> Path:
        """Where rows to be read may lie; not made yet, and kept by `clear`."""
        return self._root / "rows"

    def new(self) -> Path:
        """Make an empty directory."""
        self._count += 1
        path = self._root / "runs" / str(self._count)
        path.mkdir(parents=True)
        return path

    def clear(self) -> None:
        """Remove what `new` made, with what is written in it: also what the system has not brought to disk yet."""
        shutil.rmtree(self._root / "runs", ignore_errors=True)
