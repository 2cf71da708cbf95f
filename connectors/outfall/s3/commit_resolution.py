"""What became of a request whose answer does not tell: looked up, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from outfall.errors import TargetError
from outfall.s3.errors import FAILURES, Answer, classify, code_of, metadata, unusable
from outfall.s3.failures import translated
from outfall.s3.staged import StagedObject
from outfall.s3.store import Store
from outfall.s3.upload import ID


class Found(Enum):
    """What lies under a key."""

    NOTHING = auto()
    OURS = auto()
    OTHERS = auto()


def look(store: Store, staged: StagedObject) -> Found:
    """Ask what lies under an object's key.

    Ours is what carries our random id, or, in a store that keeps no metadata, has our size and ETag.

    Raises:
        TransientError, TargetError: S3 does not tell.
    """
    doing = f"looking at {store.url(staged.key)}"
    try:
        head = store.call(doing, "head_object", Key=staged.key)
        if head["ContentLength"] == staged.size and metadata(head).get(ID) == staged.id:
            return Found.OURS
        return _look_again(store, doing, staged)
    except FAILURES as error:
        if classify(error) is Answer.GONE:
            return Found.NOTHING
        raise translated(doing, error) from error


def _look_again(store: Store, doing: str, staged: StagedObject) -> Found:
    """Look by a byte of the object: headers of a head that was cut off may be missing, and it has no body to tell."""

    def first_byte() -> Mapping[str, Any]:
        answer = store.ask("get_object", Key=staged.key, Range="bytes=0-0")
        with answer["Body"] as body:
            if not body.read(1):
                raise unusable("get_object", "it is empty")
        return answer

    try:
        answer = store.again(doing, first_byte)
    except TargetError as error:
        # It has no bytes; or it is archived and cannot be read, and then the head has to do.
        if code_of(error.__cause__) in ("InvalidRange", "InvalidObjectState"):
            return Found.OTHERS
        raise
    return Found.OURS if _is_ours(answer, staged) else Found.OTHERS


def upload_exists(store: Store, staged: StagedObject) -> bool:
    """Ask whether an object's upload can still be completed; what is here in its bytes always can.

    Raises:
        TransientError, TargetError: S3 does not tell.
    """
    if staged.upload_id is None:
        return True
    doing = f"looking at the upload of {store.url(staged.key)}"
    try:
        store.call(doing, "list_parts", Key=staged.key, UploadId=staged.upload_id, MaxParts=1)
    except FAILURES as error:
        if classify(error) is Answer.GONE:
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
