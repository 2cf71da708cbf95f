"""One whole file in one attempt: written where readers do not look."""

from __future__ import annotations

import pyarrow as pa

from outfall.capabilities import Metrics
from outfall.file.buffered import BufferedPartition
from outfall.file.disk import explained, write_all
from outfall.file.open_files import OpenFiles
from outfall.file.store import FileStore, StagedFile
from outfall.formats import FormatOptions
from outfall.trace_points import reached


class WholeFile(BufferedPartition):
    """Writes one file, which is begun with its first bytes."""

    def __init__(
        self,
        store: FileStore,
        files: OpenFiles,
        name: str,
        bucket: str,
        options: FormatOptions,
        metrics: Metrics,
        *,
        since: float,
    ) -> None:
        self._store_of_files = store
        self._files = files
        self._path = store.scratch(name)
        self._begun = False
        self._bytes = 0
        self.name = name
        self.bucket = bucket
        self.since = since
        """When it was begun, in seconds since 1970."""
        super().__init__(options, metrics, start=True)

    @property
    def size(self) -> int:
        """How long the file is, or would be if it were finished now, as far as that is known."""
        return self._bytes + self.held

    def staged(self) -> StagedFile:
        """Describe the file once it is finished."""
        return StagedFile(name=self.name, size=self._bytes, rows=self.rows, bucket=self.bucket)

    def _store(self, buffers: list[pa.Buffer]) -> None:
        with explained("writing", self._path):
            # Exclusive: a name belongs to one attempt, so a file that stands there is a mistake of somebody.
            fd = self._files.get(self._path) if self._begun else self._files.create(self._path)
            self._begun = True
            reached("file: writing")
            self._bytes += write_all(fd, buffers)
            reached("file: written")

    def _sync(self) -> None:
        if self._begun:
            with explained("staging", self._path):
                self._store_of_files.stage(self.name, self._files.get(self._path))

    def _release(self) -> None:
        self._files.close(self._path)
