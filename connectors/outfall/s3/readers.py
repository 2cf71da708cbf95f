"""For readers of published objects, and for the clean-up of uploads of an abandoned query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from outfall.errors import ConfigurationError, RecordError
from outfall.options import make_options
from outfall.s3.clean_up import abort_uploads
from outfall.s3.manifest import FORMAT, Manifest, Manifests
from outfall.s3.options import S3Options
from outfall.s3.sink import S3Sink
from outfall.s3.store import Store


def read_manifests(
    place: str | S3Sink, *, step_id: str | None = None, incarnation: str | None = None, client: Any = None
) -> Iterator[Manifest]:
    """Yield the manifests below a prefix, ordered by incarnation and epoch.

    Epochs without rows have no manifest. Given a sink, requests use its options, such as the SSE-C key, the endpoint
    and `requester_pays`.

    Args:
        place: `s3://bucket/prefix` as in the sink, or a sink with the same options.
        step_id: only manifests of this step.
        incarnation: only manifests of this incarnation.
        client: a boto3 S3 client, only with a path; by default, one with boto3's own chain of credentials.

    Raises:
        ConfigurationError: the path is not an S3 URL, or both a client and a sink are given.
        RecordError: a manifest is damaged or has a newer format.
        TransientError: S3 did not respond in time.
        TargetError: S3 rejected the request.
    """
    store = _store_at(place, client)
    for key in Manifests(store).all(incarnation):
        body = store.get(key)
        if body is None:  # deleted since it was listed
            continue
        manifest = _decoded(store.url(key), body)
        if step_id is None or manifest.step == step_id:
            yield manifest


def committed_keys(
    place: str | S3Sink, *, step_id: str | None = None, incarnation: str | None = None, client: Any = None
) -> Iterator[str]:
    """Yield the keys of all objects of completed epochs. Arguments and errors are those of `read_manifests`."""
    for manifest in read_manifests(place, step_id=step_id, incarnation=incarnation, client=client):
        yield from (each.key for each in manifest.objects)


def clean_up_uploads(
    place: str | S3Sink, incarnation: str, *, generation: int | None = None, client: Any = None
) -> int:
    """Abort the uploads of one incarnation below a prefix.

    A sink does this after each epoch. Call it for a query that will never run again, because uploads that are not
    completed cost as much as objects. Uploads of other incarnations are not touched, whatever their age.

    Args:
        place: `s3://bucket/prefix` as in the sink, or the sink.
        incarnation: the incarnation, which is in the start line of the query and in the keys.
        generation: only uploads of older generations. Without it, all uploads, including those of a running query.
        client: a boto3 S3 client, only with a path; by default, one with boto3's own chain of credentials.

    Returns:
        The number of aborted uploads.

    Raises:
        ConfigurationError: the path is not an S3 URL, or both a client and a sink are given.
        TransientError: S3 did not respond in time.
        TargetError: S3 rejected the request.
    """
    return abort_uploads(_store_at(place, client), incarnation, generation)


def _store_at(place: str | S3Sink, client: Any = None) -> Store:
    """Return the store of a path or a sink."""
    if isinstance(place, str):
        return Store(make_options(S3Options, {"path": place}), None if client is None else _Given(client))
    if client is not None:
        raise ConfigurationError(
            "both a client and a sink are given, but the sink has its own client",
            do="leave client out, or give the path",
        )
    return place.store


@dataclass(frozen=True)
class _Given:
    """A session that returns an existing client."""

    made: Any

    def __call__(self) -> _Given:
        return self

    def client(self, *_: Any, **__: Any) -> Any:
        """Return the client, for all arguments."""
        return self.made


def _decoded(where: str, body: bytes) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        raise RecordError(f"the manifest {where} is damaged", do="restore it") from error
    if manifest.format > FORMAT:
        raise RecordError(
            f"the manifest {where} has format {manifest.format}, but this release reads format {FORMAT}",
            do="read it with the release that wrote it, or a newer one",
        )
    return manifest
