"""Publishing whole files: one rename each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, LostCommittableError
from outfall.file.disk import explained, sync_directory
from outfall.file.layout import Layout
from outfall.file.locked import Patience
from outfall.file.marker import advance_marker
from outfall.file.whole_part import StagedFile
from outfall.steps import reached

Request = CommitRequest[StagedFile]

_RECORDED = "the next run goes on from what is recorded"


class FileCommitter(Committer[StagedFile]):
    """Renames staged files to where readers see them.

    A name is never used twice, so a rename can be repeated, and two drivers that publish the same epoch at once do the
    same: whoever comes second finds the file published.
    """

    def __init__(self, layout: Layout, context: CommitterInitContext, patience: Patience) -> None:
        self._layout = layout
        self._context = context
        self._patience = patience

    def commit(self, requests: Sequence[Request]) -> None:
        context = self._context
        with explained("publishing in", self._layout.path, then=_RECORDED):
            advance_marker(
                self._layout, self._patience, context.incarnation, generation=context.generation, epoch=context.epoch
            )
            for request in requests:
                self._publish(request)
            # One pair for all: nothing is told to be committed before this returns.
            sync_directory(self._layout.path)
            sync_directory(self._layout.staging)
            reached("file: publications synced")

    def find_lost(self, requests: Sequence[Request]) -> None:
        for request in requests:
            staged, published = self._sizes(request.committable)
            if staged is None and published is None:
                request.signal_lost(self._gone(request.committable))

    def revoke(self, requests: Sequence[Request]) -> None:
        with explained("revoking in", self._layout.staging, then=_RECORDED):
            for request in requests:
                self._revoke(request.committable)
            if requests and os.path.isdir(self._layout.staging):
                sync_directory(self._layout.staging)

    def _publish(self, request: Request) -> None:
        file = request.committable
        staged, published = self._sizes(file)
        if staged is None:
            self._settle_without_staged(request, published)
        elif published is not None:
            request.signal_failed_with_known_reason(self._foreign(file))
        elif staged != file.size:
            request.signal_failed_with_known_reason(self._changed(self._layout.staged(file.name), staged, file.size))
        else:
            self._rename(request)

    def _rename(self, request: Request) -> None:
        file = request.committable
        reached("file: publishing")
        try:
            os.rename(self._layout.staged(file.name), self._layout.data(file.name))
        except FileNotFoundError:
            # Another driver that publishes the same record was faster.
            self._settle_without_staged(request, self._sizes(file)[1])
        reached("file: published")

    def _settle_without_staged(self, request: Request, published: int | None) -> None:
        file = request.committable
        if published is None:
            request.signal_lost(self._gone(file))
        elif published == file.size:
            request.signal_already_committed()
        else:
            request.signal_failed_with_known_reason(self._changed(self._layout.data(file.name), published, file.size))

    def _revoke(self, file: StagedFile) -> None:
        try:
            os.unlink(self._layout.staged(file.name))
        except FileNotFoundError:
            if self._sizes(file)[1] is not None:
                raise LostCommittableError(
                    f"{self._layout.data(file.name)} is published already and cannot be revoked",
                    step=self._context.step_id,
                    epoch=self._context.epoch,
                    do="delete the files of this epoch and start again, or restore the lost ones",
                ) from None
        reached("file: revoked")

    def _sizes(self, file: StagedFile) -> tuple[int | None, int | None]:
        """Lengths in staging and where readers look, of a file that another driver may rename meanwhile."""
        staged, published = _size(self._layout.staged(file.name)), _size(self._layout.data(file.name))
        if staged is not None and published is not None:
            staged = _size(self._layout.staged(file.name))
        return staged, published

    def _gone(self, file: StagedFile) -> str:
        return f"{file.name} ({file.rows} rows) is neither in {self._layout.staging} nor in {self._layout.path}"

    def _foreign(self, file: StagedFile) -> CommitRefusedError:
        return CommitRefusedError(
            f"{self._layout.data(file.name)} exists and is not ours",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why="our file of that name is still unpublished",
            do="find out who wrote it, move it away, and start the query again",
        )

    def _changed(self, path: str, actual: int, expected: int) -> CommitRefusedError:
        return CommitRefusedError(
            f"{path} holds {actual} bytes, but {expected} were recorded",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why="the file was changed after it was written, or the disk lost a part of it",
            do="restore the file and start the query again",
        )


def _size(path: str) -> int | None:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return None
