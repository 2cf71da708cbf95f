"""Publishes an epoch: completes its uploads, several at a time. Each object appears atomically.

If a response leaves the outcome of a request open, the outcome is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from outfall.capabilities import CommitterInitContext
from outfall.errors import TargetError
from outfall.possession.possession import advance, check_still
from outfall.s3.errors import FAILURES, FailureKind, classify, code_of, describe, metadata, translated, unusable
from outfall.s3.staged import ID, StagedObject
from outfall.s3.store import Store
from outfall.s3.target import PrefixPort
from outfall.storage.commit import Found, NotPublishedError, Obstacle, StagingArea
from outfall.trace_points import reached

_OBSTACLES = {
    FailureKind.NOT_DONE: Obstacle.NOT_DONE,
    FailureKind.EXPIRED: Obstacle.NOT_DONE,
    FailureKind.INCOMPLETE: Obstacle.INCOMPLETE,
}


class S3Staging(StagingArea[StagedObject]):
    """Completes uploads, and puts objects whose bytes are in the committable.

    An object whose bytes are in the committable could be put again after it was deleted. Nothing is therefore published
    once the record has a newer generation or a later epoch.
    """

    noun = "object"
    foreign = "its id, or its size and ETag, are not those of the upload of this query"

    def __init__(self, store: Store, context: CommitterInitContext) -> None:
        self.context = context
        self.parallel = store.options.max_concurrency
        self._store = store
        self._conditional = True

    @contextmanager
    def publishing(self, staged: Sequence[StagedObject]) -> Iterator[None]:
        port = PrefixPort(self._store, self.context.incarnation, self.context.step_id)
        self._conditional = advance(port, self.context).conditional
        reached("s3: record advanced")
        yield
        # Another query may have overwritten the prefix in the meantime, and deleted some or all of the objects.
        check_still(port, self.context)

    def publish(self, staged: StagedObject) -> None:
        reached("s3: completing")
        if not self._conditional and self.look(staged) is not Found.NOTHING:
            raise NotPublishedError(Obstacle.UNCLEAR)
        try:
            self._complete(staged)
        except FAILURES as error:
            kind = classify(error)
            if kind is FailureKind.REFUSED:
                raise translated(f"publishing {staged}", error) from error
            reason = f"parts of {staged} are missing" if kind is FailureKind.INCOMPLETE else describe(error)
            raise NotPublishedError(_OBSTACLES.get(kind, Obstacle.UNCLEAR), reason) from error
        reached("s3: completed")

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

    def look(self, staged: StagedObject) -> Found:
        """Return which object is under a key.

        It is ours if it has the random id; or, in a store without metadata, if it has the same size and ETag.
        """
        store, doing = self._store, f"checking {self.url(staged)}"
        try:
            head = store.call(doing, "head_object", Key=staged.key)
            if head["ContentLength"] == staged.size and metadata(head).get(ID) == staged.id:
                return Found.OURS
            return self._look_again(doing, staged)
        except FAILURES as error:
            if classify(error) is FailureKind.GONE:
                return Found.NOTHING
            raise translated(doing, error) from error

    def _look_again(self, doing: str, staged: StagedObject) -> Found:
        """Check by reading one byte: a HEAD response has no body that would show whether its headers are complete."""
        store = self._store

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

    def is_staged(self, staged: StagedObject) -> bool:
        """Whether an object's upload can still be completed. An object with its bytes always can."""
        if staged.upload_id is None:
            return True
        doing = f"checking the upload of {self.url(staged)}"
        try:
            self._store.call(doing, "list_parts", Key=staged.key, UploadId=staged.upload_id, MaxParts=1)
        except FAILURES as error:
            if classify(error) is FailureKind.GONE:
                return False
            raise translated(doing, error) from error
        return True

    def unstage(self, staged: StagedObject) -> bool:
        """Abort an upload. An object whose bytes are in the recovery log needs no action, because it was never put."""
        if staged.upload_id is not None:
            doing = f"aborting the upload of {self.url(staged)}"
            self._store.abort_upload(doing, staged.key, staged.upload_id)
            reached("s3: revoked")
        return False

    def url(self, staged: StagedObject) -> str:
        return self._store.url(staged.key)

    def why_missing(self, staged: StagedObject) -> str:
        return (
            f"{staged} is missing: its upload was aborted, for example by a lifecycle rule, or its object was deleted"
            " before the epoch was completed"
        )


def _is_ours(answer: Mapping[str, Any], staged: StagedObject) -> bool:
    if int(answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"]) != staged.size:
        return False
    found = metadata(answer).get(ID)
    if found is not None:
        return bool(found == staged.id)
    return str(answer.get("ETag", "")).strip('"') == staged.etag()
