"""Uploads of attempts that will never be published: found by their keys, and aborted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outfall.s3.errors import FAILURES, Answer, classify
from outfall.s3.failures import translated
from outfall.s3.reader import store_at
from outfall.storage.names import AttemptName
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.s3.sink import S3Sink


def sweep_uploads(place: str | S3Sink, incarnation: str, *, generation: int | None = None, client: Any = None) -> int:
    """Abort the uploads of one incarnation below a prefix.

    A sink does this by itself after each epoch. By hand it is for a query that will never run again: uploads that are
    not completed cost as much as objects. Nothing of others is touched, and nothing for its age alone.

    Args:
        place: `s3://bucket/prefix`, as the sink has it, or the sink.
        incarnation: whose; the start line of the query names it, and so do the keys.
        generation: only uploads of generations below this one. Without it all, also those of a query that still runs.
        client: a boto3 client for S3, for a path; by default one with boto3's own chain of credentials.

    Returns:
        How many were aborted.

    Raises:
        ConfigurationError: the path is no S3 URL, or there is a client beside a sink.
        TransientError, TargetError: S3 refuses.
    """
    store = store_at(place, client)
    doing = f"sweeping {store.options.url()}"

    def ask(request: str, **arguments: Any) -> Mapping[str, Any]:
        return store.call(doing, request, **arguments)

    try:
        return abort_uploads(ask, store.options.root, incarnation, generation)
    except FAILURES as error:
        raise translated(doing, error) from error


def abort_uploads(ask: Any, root: str, incarnation: str, generation: int | None) -> int:
    """Abort the uploads below a root that an incarnation began under a generation below the given one.

    Args:
        ask: makes a request of S3, by its name and arguments.
        root: what all keys begin with.
        incarnation: whose.
        generation: the first that is spared; `None` for none.
    """
    # All first: a listing that goes on where an upload was that is no more may leave out others.
    ours = list(find_uploads(ask, root, incarnation, generation))
    for key, upload_id in ours:
        try:
            ask("abort_multipart_upload", Key=key, UploadId=upload_id)
        except FAILURES as error:
            if classify(error) is not Answer.GONE:
                raise
        reached("s3: swept")
    return len(ours)


def find_uploads(ask: Any, root: str, incarnation: str, generation: int | None) -> Iterator[tuple[str, str]]:
    """Yield key and id of each upload that `abort_uploads` would abort."""
    given: dict[str, Any] = {"Prefix": root}
    while True:
        page = ask("list_multipart_uploads", **given)
        for upload in page.get("Uploads", []):
            name = AttemptName.parse(upload["Key"], with_step=True)
            if name is None or name.incarnation != incarnation or not upload["Key"].startswith(root):
                continue
            if generation is None or name.generation < generation:
                yield upload["Key"], upload["UploadId"]
        if not page.get("IsTruncated"):
            return
        given |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}
