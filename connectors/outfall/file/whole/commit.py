"""Publishing whole files, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from outfall.capabilities import CommitterInitContext
from outfall.errors import CommitRefusedError
from outfall.file.possession import FilePort
from outfall.file.stores.disk import translated_errors
from outfall.file.stores.store import STAGING, FileStore, StagedFile
from outfall.storage.commit import Found, NotPublishedError, Obstacle, StagingArea
from outfall.trace_points import reached

_RECORDED = "the next run continues from the recovery log"


class FileStaging(StagingArea[StagedFile]):
    """Moves staged files to their visible names. A file is recognized by its length."""

    noun = "file"
    foreign = "the file that this query staged under that name is not published yet"

    def __init__(self, port: FilePort[Any], context: CommitterInitContext) -> None:
        self.context = context
        self.parallel = port.store.parallel
        self._port = port
        self._store: FileStore = port.store

    @contextmanager
    def publishing(self, staged: Sequence[StagedFile]) -> Iterator[None]:
        store = self._store
        with (
            translated_errors("publishing in", store.root, then=_RECORDED),
            self._port.publishing(self.context, staged),
        ):
            yield
            # One sync for all files: none is reported as committed before this returns. Existing directories are
            # included, because the driver that created them may have died before their names were durable.
            store.sync([*sorted({level for file in staged for level in _levels(file.bucket)}), STAGING])
            reached("file: publications synced")

    def reading(self) -> AbstractContextManager[object]:
        return translated_errors("reading", self._store.root, then=_RECORDED)

    @contextmanager
    def revoking(self) -> Iterator[None]:
        with translated_errors("revoking in", self._store.staging, then=_RECORDED):
            yield
            with suppress(FileNotFoundError):
                self._store.sync([STAGING])

    def publish(self, staged: StagedFile) -> None:
        size, published = self._sizes(staged)
        if size is None and published not in (None, staged.size):
            raise self._changed(self.url(staged), published, staged)
        # A publication by copy may have been interrupted before its source was removed.
        half_moved = self._store.publishes_by_copy and size == published == staged.size
        if size is None or (published is not None and not half_moved):
            raise NotPublishedError(Obstacle.UNCLEAR)
        if size != staged.size:
            raise self._changed(f"{self._store.staging}/{staged.name}", size, staged)
        reached("file: publishing")
        # What is half moved is not copied again: the copy is complete, and perhaps may not be replaced.
        publish = self._store.publish_rest if half_moved else self._store.publish
        try:
            publish(staged)
        except FileNotFoundError as error:
            raise NotPublishedError(Obstacle.UNCLEAR, "another driver has published it") from error
        reached("file: published")

    def look(self, staged: StagedFile) -> Found:
        size, published = self._sizes(staged)
        if published is None:
            return Found.NOTHING
        if size is not None:
            return Found.OTHERS
        return Found.OURS if published == staged.size else Found.CHANGED

    def is_staged(self, staged: StagedFile) -> bool:
        return self._store.size(f"{STAGING}/{staged.name}") is not None

    def unstage(self, staged: StagedFile) -> bool:
        existed = self._store.unstage(staged.name)
        if existed:
            reached("file: revoked")
        return existed

    def url(self, staged: StagedFile) -> str:
        return f"{self._store.root}/{staged.path}"

    def why_missing(self, staged: StagedFile) -> str:
        return f"{staged.name} ({_size(staged)}) is neither in {self._store.staging} nor in {self._store.root}"

    def _sizes(self, staged: StagedFile) -> tuple[int | None, int | None]:
        """Return the staged and the published length of a file, which another driver may move at the same time."""
        size, published = self._store.size(f"{STAGING}/{staged.name}"), self._store.size(staged.path)
        if size is not None and published is not None:
            size = self._store.size(f"{STAGING}/{staged.name}")
        return size, published

    def _changed(self, path: str, actual: int | None, staged: StagedFile) -> CommitRefusedError:
        return CommitRefusedError(
            f"{path} holds {actual} bytes, but {staged.size} were recorded",
            step=self.context.step_id,
            epoch=self.context.epoch,
            why="the file was changed after it was written, or the disk lost a part of it",
            do="restore the file and start the query again",
        )


def _size(staged: StagedFile) -> str:
    return f"{staged.size} bytes" if staged.rows is None else f"{staged.rows} rows"


def _levels(bucket: str) -> Iterator[str]:
    """Yield a partition directory and all its parents, including the root."""
    while bucket:
        yield bucket
        bucket = bucket.rpartition("/")[0]
    yield ""
