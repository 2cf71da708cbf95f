"""Publishing whole files, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, LostCommittableError
from outfall.file.possession import FilePort
from outfall.file.storage.disk import explained
from outfall.file.storage.store import STAGING, FileStore, StagedFile
from outfall.trace_points import reached

Request = CommitRequest[StagedFile]

_RECORDED = "the next run continues from the recovery log"


class FileCommitter(Committer[StagedFile]):
    """Moves staged files to their visible names.

    Names are never reused, so a publication can be repeated. If two drivers publish the same epoch at once, the second
    one finds the file published.
    """

    def __init__(self, port: FilePort[Any], context: CommitterInitContext) -> None:
        self._port = port
        self._store: FileStore = port.store
        self._context = context

    def commit(self, requests: Sequence[Request]) -> None:
        store, files = self._store, [request.committable for request in requests]
        with explained("publishing in", store.root, then=_RECORDED), self._port.publishing(self._context, files):
            self._each(self._publish, requests)
            # One sync for all files: none is reported as committed before this returns. Existing directories are
            # included, because the driver that created them may have died before their names were durable.
            store.sync([*sorted({level for file in files for level in _levels(file.bucket)}), STAGING])
            reached("file: publications synced")

    def find_lost(self, requests: Sequence[Request]) -> None:
        with explained("reading", self._store.root, then=_RECORDED):
            self._each(self._find_lost, requests)

    def revoke(self, requests: Sequence[Request]) -> None:
        with explained("revoking in", self._store.staging, then=_RECORDED):
            self._each(self._revoke, requests)
            with suppress(FileNotFoundError):
                self._store.sync([STAGING])

    def _each(self, action: Callable[[Request], None], requests: Iterable[Request]) -> None:
        if self._store.parallel == 1:
            for request in requests:
                action(request)
            return
        with ThreadPoolExecutor(self._store.parallel, "outfall-publish") as pool:
            for done in [pool.submit(action, request) for request in requests]:
                done.result()

    def _find_lost(self, request: Request) -> None:
        staged, published = self._sizes(request.committable)
        if staged is None and published is None:
            request.signal_lost(self._gone(request.committable))

    def _publish(self, request: Request) -> None:
        file = request.committable
        staged, published = self._sizes(file)
        if staged is None:
            self._settle_without_staged(request, published)
        elif published is not None and not self._is_half_moved(file, staged, published):
            request.signal_failed_with_known_reason(self._foreign(file))
        elif staged != file.size:
            request.signal_failed_with_known_reason(self._changed(f"{self._store.staging}/{file.name}", staged, file))
        else:
            self._move(request)

    def _is_half_moved(self, file: StagedFile, staged: int, published: int) -> bool:
        """Whether a publication by copy was interrupted before its source was removed."""
        return self._store.publishes_by_copy and staged == published == file.size

    def _move(self, request: Request) -> None:
        reached("file: publishing")
        try:
            self._store.publish(request.committable)
        except FileNotFoundError:
            # Another driver has published the same file.
            self._settle_without_staged(request, self._sizes(request.committable)[1])
        reached("file: published")

    def _settle_without_staged(self, request: Request, published: int | None) -> None:
        file = request.committable
        if published is None:
            request.signal_lost(self._gone(file))
        elif published == file.size:
            request.signal_already_committed()
        else:
            request.signal_failed_with_known_reason(self._changed(self._published_path(file), published, file))

    def _revoke(self, request: Request) -> None:
        file = request.committable
        if self._store.unstage(file.name):
            reached("file: revoked")
        elif self._sizes(file)[1] is not None:
            raise LostCommittableError(
                f"{self._published_path(file)} is already published and cannot be revoked",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="delete the files of this epoch and start again, or restore the lost ones",
            )

    def _sizes(self, file: StagedFile) -> tuple[int | None, int | None]:
        """Return the staged and the published length of a file, which another driver may move at the same time."""
        staged, published = self._store.size(f"{STAGING}/{file.name}"), self._store.size(file.path)
        if staged is not None and published is not None:
            staged = self._store.size(f"{STAGING}/{file.name}")
        return staged, published

    def _published_path(self, file: StagedFile) -> str:
        return f"{self._store.root}/{file.path}"

    def _gone(self, file: StagedFile) -> str:
        return f"{file.name} ({file.rows} rows) is neither in {self._store.staging} nor in {self._store.root}"

    def _foreign(self, file: StagedFile) -> CommitRefusedError:
        return CommitRefusedError(
            f"{self._published_path(file)} exists and was created by another writer",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why="the file that this query staged under that name is not published yet",
            do="find the writer, move the file to another location, and start the query again",
        )

    def _changed(self, path: str, actual: int, file: StagedFile) -> CommitRefusedError:
        return CommitRefusedError(
            f"{path} holds {actual} bytes, but {file.size} were recorded",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why="the file was changed after it was written, or the disk lost a part of it",
            do="restore the file and start the query again",
        )


def _levels(bucket: str) -> Iterator[str]:
    """Yield a partition directory and all its parents, including the root."""
    while bucket:
        yield bucket
        bucket = bucket.rpartition("/")[0]
    yield ""
