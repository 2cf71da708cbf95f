"""Publishes an epoch: completes its uploads, several at a time. Each object appears atomically.

If a response leaves the outcome of a request open, the outcome is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, LostCommittableError, TargetError
from outfall.possession.possession import advance, check_still
from outfall.retry_log import watch_thread, watcher
from outfall.s3.errors import FAILURES, FailureKind, classify, code_of, describe, metadata, translated, unusable
from outfall.s3.record import ObjectRecord
from outfall.s3.staged import ID, StagedObject
from outfall.s3.store import Store
from outfall.s3.target import PrefixPort
from outfall.trace_points import reached

Request = CommitRequest[StagedObject]


class S3Committer(Committer[StagedObject]):
    """Completes uploads, and puts objects whose bytes are in the committable. It never replaces an object.

    A key belongs to one attempt and is never reused, so a commit can be repeated: if two drivers complete one upload,
    the second one finds the object. If a response leaves the outcome open, the object is checked.

    An object whose bytes are in the committable could be put again after it was deleted. Nothing is therefore published
    once the record has a newer generation or a later epoch.

    A loss after the commit has begun is final: an upload that was never completed cannot be distinguished from a
    completed one whose object was deleted.
    """

    strict = True

    def __init__(self, store: Store, context: CommitterInitContext) -> None:
        self._store = store
        self._context = context
        self._record: ObjectRecord | None = None

    def commit(self, requests: Sequence[Request]) -> None:
        # In each round, because a driver that was paused may have been replaced in the meantime.
        port = PrefixPort(self._store, self._context.incarnation, self._context.step_id)
        self._record = advance(port, self._context)
        reached("s3: marker advanced")
        self._each(self._publish, requests)
        # Another query may have overwritten the prefix in the meantime, and deleted some or all of the objects.
        check_still(port, self._context)

    def find_lost(self, requests: Sequence[Request]) -> None:
        self._each(self._find_lost, requests)

    def revoke(self, requests: Sequence[Request]) -> None:
        self._each(self._revoke, requests)

    def _each(self, action: Callable[[Request], None], requests: Sequence[Request]) -> None:
        threads = min(self._store.options.max_concurrency, len(requests))
        if threads <= 1:
            for request in requests:
                action(request)
            return
        with ThreadPoolExecutor(threads, "outfall-s3-commit", watch_thread, (watcher(),)) as pool:
            for done in [pool.submit(action, request) for request in requests]:
                done.result()

    def _publish(self, request: Request) -> None:
        reached("s3: completing")
        staged = request.committable
        if not self._conditional and self._settled_by_look(request):
            return
        try:
            self._complete(staged)
        except FAILURES as error:
            self._settle(request, error)
        else:
            request.signal_committed()
        reached("s3: completed")

    @property
    def _conditional(self) -> bool:
        return self._record is None or self._record.conditional

    def _complete(self, staged: StagedObject) -> None:
        condition = {"IfNoneMatch": "*"} if self._conditional else {}
        if staged.upload_id is None:
            data = self._store.data() | {"Metadata": {ID: staged.id}}
            self._store.ask("put_object", Key=staged.key, Body=staged.body, **data, **condition)
            return
        self._store.ask(
            "complete_multipart_upload",
            Key=staged.key,
            UploadId=staged.upload_id,
            MultipartUpload={"Parts": [part.named() for part in staged.parts]},
            MpuObjectSize=staged.size,
            **condition,
        )

    def _settled_by_look(self, request: Request) -> bool:
        """Check the key before publishing, for a store that would replace an object; return whether it exists."""
        found = look(self._store, request.committable)
        if found is Found.OURS:
            request.signal_already_committed()
        elif found is Found.OTHERS:
            request.signal_failed_with_known_reason(self._foreign(request.committable))
        return found is not Found.NOTHING

    def _settle(self, request: Request, error: BaseException) -> None:
        """Determine the outcome of a failed request, and signal it."""
        staged, answer = request.committable, classify(error)
        if answer is FailureKind.REFUSED:
            raise translated(f"publishing {staged}", error) from error
        if answer in (FailureKind.NOT_DONE, FailureKind.EXPIRED):
            request.retry_later(describe(error))
            return
        found = look(self._store, staged)
        if found is Found.OURS:
            request.signal_already_committed()
        elif answer is FailureKind.TAKEN and found is Found.OTHERS:
            request.signal_failed_with_known_reason(self._foreign(staged))
        elif answer is FailureKind.INCOMPLETE:
            request.signal_lost(f"parts of {staged} are missing")
        elif upload_exists(self._store, staged):
            request.retry_later(describe(error))
        else:
            self._settle_gone(request)

    def _settle_gone(self, request: Request) -> None:
        """Signal a missing upload. Another driver may have completed it since the first check."""
        if look(self._store, request.committable) is Found.OURS:
            request.signal_already_committed()
        else:
            request.signal_lost(_gone(request.committable))

    def _find_lost(self, request: Request) -> None:
        staged = request.committable
        if not upload_exists(self._store, staged) and look(self._store, staged) is not Found.OURS:
            request.signal_lost(_gone(staged))

    def _revoke(self, request: Request) -> None:
        """Abort an upload. An object whose bytes are in the recovery log needs no action, because it was never put."""
        staged = request.committable
        if staged.upload_id is not None:
            doing = f"aborting the upload of {self._store.url(staged.key)}"
            self._store.abort_upload(doing, staged.key, staged.upload_id)
            reached("s3: revoked")
        if look(self._store, staged) is Found.OURS:
            raise LostCommittableError(
                f"{self._store.url(staged.key)} is already published and cannot be revoked",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="delete the objects of this epoch and start again, or restore the lost ones",
            )

    def _foreign(self, staged: StagedObject) -> CommitRefusedError:
        return CommitRefusedError(
            f"{self._store.url(staged.key)} exists and was created by another writer",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why="its id, or its size and ETag, are not those of the upload of this query",
            do="find the writer, move the object to another location, and start the query again",
        )


def _gone(staged: StagedObject) -> str:
    return (
        f"{staged} is missing: its upload was aborted, for example by a lifecycle rule, or its object was deleted"
        " before the epoch was completed"
    )


class Found(Enum):
    """The object under a key."""

    NOTHING = auto()
    OURS = auto()
    OTHERS = auto()


def look(store: Store, staged: StagedObject) -> Found:
    """Return which object is under a key.

    It is ours if it has the random id; or, in a store without metadata, if it has the same size and ETag.

    Raises:
        TransientError: S3 did not respond in time.
        TargetError: S3 rejected the request.
    """
    doing = f"checking {store.url(staged.key)}"
    try:
        head = store.call(doing, "head_object", Key=staged.key)
        if head["ContentLength"] == staged.size and metadata(head).get(ID) == staged.id:
            return Found.OURS
        return _look_again(store, doing, staged)
    except FAILURES as error:
        if classify(error) is FailureKind.GONE:
            return Found.NOTHING
        raise translated(doing, error) from error


def _look_again(store: Store, doing: str, staged: StagedObject) -> Found:
    """Check by reading one byte: a HEAD response has no body that would show whether its headers are complete."""

    def first_byte() -> Mapping[str, Any]:
        answer = store.ask("get_object", Key=staged.key, Range="bytes=0-0")
        with answer["Body"] as body:
            if not body.read(1):
                raise unusable("get_object", "it is empty")
        return answer

    try:
        answer = store.again(doing, first_byte)
    except TargetError as error:
        # The object is empty, or it is archived and cannot be read. Then the HEAD response decides.
        if code_of(error.__cause__) in ("InvalidRange", "InvalidObjectState"):
            return Found.OTHERS
        raise
    return Found.OURS if _is_ours(answer, staged) else Found.OTHERS


def upload_exists(store: Store, staged: StagedObject) -> bool:
    """Return whether an object's upload can still be completed. An object with its bytes always can.

    Raises:
        TransientError: S3 did not respond in time.
        TargetError: S3 rejected the request.
    """
    if staged.upload_id is None:
        return True
    doing = f"checking the upload of {store.url(staged.key)}"
    try:
        store.call(doing, "list_parts", Key=staged.key, UploadId=staged.upload_id, MaxParts=1)
    except FAILURES as error:
        if classify(error) is FailureKind.GONE:
            return False
        raise translated(doing, error) from error
    return True


def _is_ours(answer: Mapping[str, Any], staged: StagedObject) -> bool:
    if int(answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"]) != staged.size:
        return False
    found = metadata(answer).get(ID)
    if found is not None:
        return bool(found == staged.id)
    return str(answer.get("ETag", "")).strip('"') == staged.etag()
