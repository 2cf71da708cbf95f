"""One whole file in one attempt: written where readers do not look."""

from __future__ import annotations

import os
from contextlib import suppress

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import WriterInitContext
from outfall.encode import FormatOptions
from outfall.file.buffered import BufferedPartition
from outfall.file.disk import explained, sync_directory, write_all
from outfall.file.layout import Layout
from outfall.sinks import StatelessSinkPartition
from outfall.steps import reached


class StagedFile(BaseModel):
    """A file that is written, durable and not yet published."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its name, in staging and once it is published."""
    size: int = Field(ge=0)
    """Its length in bytes, so that a loss is seen before it is published."""
    rows: int = Field(ge=0)


class WholeFile(BufferedPartition, StatelessSinkPartition[object]):
    """Writes a file of its own. An attempt without rows leaves none, nor does one that fails."""

    def __init__(self, layout: Layout, name: str, options: FormatOptions, context: WriterInitContext) -> None:
        self._layout = layout
        self._name = name
        self._path = layout.staged(name)
        self._fd: int | None = None
        self._size = 0
        self._handed_over = False
        super().__init__(options, context.metrics, start=True)

    def prepare_commit(self) -> list[StagedFile]:
        """Make the file and its name durable, and hand it over."""
        self.finish()
        self._handed_over = True
        return [StagedFile(name=self._name, size=self._size, rows=self._rows)] if self._rows else []

    def _store(self, buffers: list[pa.Buffer]) -> None:
        with explained("writing", self._path):
            if self._fd is None:
                # Exclusive: a name belongs to one attempt, so a file that stands there is a mistake of somebody.
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            reached("file: writing")
            self._size += write_all(self._fd, buffers)
            reached("file: written")

    def _sync(self) -> None:
        if self._fd is None:
            return
        with explained("syncing", self._path):
            reached("file: syncing")
            os.fsync(self._fd)
            reached("file: synced")
            sync_directory(self._layout.staging)
            reached("file: staged")

    def _release(self) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        if not self._handed_over:
            # Or each try on a full disk would make it fuller. One that stays behind is swept.
            with suppress(OSError):
                os.unlink(self._path)
