"""What became of a request whose answer does not tell: looked up, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from outfall.s3.answers import FAILURES, Answer, classify
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
    except FAILURES as error:
        if classify(error) is Answer.GONE:
            return Found.NOTHING
        raise translated(doing, error) from error
    return Found.OURS if _is_ours(head, staged) else Found.OTHERS


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


def _is_ours(head: Mapping[str, Any], staged: StagedObject) -> bool:
    if head["ContentLength"] != staged.size:
        return False
    # The names are those of HTTP headers, and stores that are not AWS' may have changed their case.
    found = {name.lower(): value for name, value in head.get("Metadata", {}).items()}.get(ID)
    if found is not None:
        return bool(found == staged.id)
    return str(head.get("ETag", "")).strip('"') == staged.etag()
