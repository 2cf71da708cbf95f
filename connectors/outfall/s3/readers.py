"""For whoever reads or clears up without writing: what was published, and uploads of a query that is gone for good."""

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
    """Yield the manifests below a prefix: by incarnation, and of each in the order of its epochs.

    Epochs without rows have none. The helper only reads; what a sink adds to requests, as a key of SSE-C, its endpoint
    or who pays, it adds when it is given the sink.

    Args:
        place: `s3://bucket/prefix`, as the sink has it, or a sink made with the same options.
        step_id: of one step only.
        incarnation: of one incarnation only.
        client: a boto3 client for S3, for a path; by default one with boto3's own chain of credentials.

    Raises:
        ConfigurationError: the path is no S3 URL, or there is a client beside a sink.
        RecordError: a manifest is damaged, or of a newer format.
        TransientError, TargetError: S3 cannot be read.
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
    return abort_uploads(_store_at(place, client), incarnation, generation)


def _store_at(place: str | S3Sink, client: Any = None) -> Store:
    """Return the store at a place; a sink's options say how S3 is reached, SSE-C and paying included."""
    if isinstance(place, str):
        return Store(make_options(S3Options, {"path": place}), None if client is None else _Given(client))
    if client is not None:
        raise ConfigurationError(
            "client is given beside a sink, which says itself how S3 is reached",
            do="leave client out, or give the path",
        )
    return place.store


@dataclass(frozen=True)
class _Given:
    """A session whose client there is already."""

    made: Any

    def __call__(self) -> _Given:
        return self

    def client(self, *_: Any, **__: Any) -> Any:
        """Return it, whatever is asked for."""
        return self.made


def _decoded(where: str, body: bytes) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        raise RecordError(f"the manifest {where} is damaged", do="restore it") from error
    if manifest.format > FORMAT:
        raise RecordError(
            f"the manifest {where} has format {manifest.format}, and this release reads {FORMAT}",
            do="read it with the release that wrote it, or a newer one",
        )
    return manifest
