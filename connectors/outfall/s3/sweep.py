"""Uploads of attempts that will never be published: found by their keys, and aborted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import boto3

from outfall.location import Location
from outfall.s3.answers import FAILURES, Answer, classify
from outfall.s3.failures import translated
from outfall.s3.names import ObjectName
from outfall.s3.options import PLACE
from outfall.steps import reached


def sweep_uploads(path: str, incarnation: str, *, generation: int | None = None, client: Any = None) -> int:
    """Abort the uploads of one incarnation below a prefix.

    A sink does this by itself after each epoch. By hand it is for a query that will never run again: uploads that are
    not completed cost as much as objects. Nothing of others is touched, and nothing for its age alone.

    Args:
        path: `s3://bucket/prefix`, as the sink has it.
        incarnation: whose; the start line of the query names it, and so do the keys.
        generation: only uploads of generations below this one. Without it all, also those of a query that still runs.
        client: a boto3 client for S3; by default a new one, with boto3's own chain of credentials.

    Returns:
        How many were aborted.

    Raises:
        ConfigurationError: the path is no S3 URL.
        TransientError, TargetError: S3 refuses.
    """
    client = boto3.client("s3") if client is None else client
    bucket, _, prefix = Location.parse(path, PLACE).path.partition("/")

    def ask(request: str, **arguments: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = getattr(client, request)(Bucket=bucket, **arguments)
        return answer

    try:
        return abort_uploads(ask, f"{prefix}/" if prefix else "", incarnation, generation)
    except FAILURES as error:
        raise translated(f"sweeping {path}", error) from error


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
            name = ObjectName.parse(upload["Key"])
            if name is None or name.incarnation != incarnation or not upload["Key"].startswith(root):
                continue
            if generation is None or name.generation < generation:
                yield upload["Key"], upload["UploadId"]
        if not page.get("IsTruncated"):
            return
        given |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}
