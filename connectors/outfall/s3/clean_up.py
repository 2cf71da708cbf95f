"""Clean-up of uploads and pieces that will never be published, identified by their names.

Age does not matter, and data of other queries is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outfall.errors import TargetError
from outfall.s3.rolling.pieces import generation_of, key_of
from outfall.s3.store import Store
from outfall.storage.names import AttemptName
from outfall.trace_points import reached

_AT_ONCE = 1000
"""The number of keys that S3 deletes in one request."""


def abort_uploads(store: Store, incarnation: str, generation: int | None) -> int:
    """Abort the uploads that `find_uploads` finds; return their number."""
    # List all first: a listing that continues at an aborted upload may omit others.
    ours = list(find_uploads(store, incarnation, generation))
    for key, upload_id in ours:
        store.abort_upload(f"cleaning up {store.options.url()}", key, upload_id)
        reached("s3: cleaned up")
    return len(ours)


def find_uploads(store: Store, incarnation: str, generation: int | None) -> Iterator[tuple[str, str]]:
    """Yield key and id of each upload of an incarnation's generations before `generation`; of all if it is `None`."""
    root = store.options.root
    given: dict[str, Any] = {"Prefix": root}
    while True:
        page = store.demand(f"listing uploads below {store.options.url()}", "list_multipart_uploads", **given)
        for upload in page.get("Uploads", []):
            name = AttemptName.parse(upload["Key"], with_step=True)
            if name is None or name.incarnation != incarnation or not upload["Key"].startswith(root):
                continue
            if generation is None or name.generation < generation:
                yield upload["Key"], upload["UploadId"]
        if not page.get("IsTruncated"):
            return
        given |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}


def dead_pieces(store: Store, incarnation: str, generation: int, live: set[str]) -> list[str]:
    """Return the keys of an incarnation's pieces, older than `generation`, that no recorded state names (`live`)."""
    start = key_of(store, "")
    names = [key.removeprefix(start) for key in store.keys(f"{start}{incarnation}/")]
    return [start + name for name in names if name not in live and _is_before(name, incarnation, generation)]


def delete_pieces(store: Store, incarnation: str, generation: int, live: set[str]) -> int:
    """Delete the pieces that `dead_pieces` finds; return their number."""
    dead = dead_pieces(store, incarnation, generation, live)
    if dead:
        reached("s3: deleting pieces")
        delete(store, dead)
    return len(dead)


def delete(store: Store, keys: Sequence[str]) -> None:
    """Delete objects, a thousand at a time. Raises the errors of `Store.demand`; `TargetError` also if some remain."""
    doing = f"deleting below {store.options.url()}"
    for start in range(0, len(keys), _AT_ONCE):
        # Not quiet: a response with a result for each key is known to be complete.
        wanted = {"Objects": [{"Key": key} for key in keys[start : start + _AT_ONCE]], "Quiet": False}
        failed = store.demand(doing, "delete_objects", Delete=wanted).get("Errors", [])
        if failed:
            raise TargetError(
                f"{doing} failed for {len(failed)} objects, first {failed[0].get('Key')!r}",
                why=f"{failed[0].get('Code')}: {failed[0].get('Message')}",
                do="grant s3:DeleteObject, or delete them manually",
            )


def _is_before(name: str, incarnation: str, generation: int) -> bool:
    found = generation_of(name, incarnation)
    return found is not None and found < generation
