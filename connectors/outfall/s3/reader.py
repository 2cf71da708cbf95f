"""The store of those who read or clear up without writing: from a path, or from the sink that wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outfall.errors import ConfigurationError
from outfall.options import make_options
from outfall.s3.options import S3Options
from outfall.s3.store import Store

if TYPE_CHECKING:
    from outfall.s3.sink import S3Sink


def store_at(place: str | S3Sink, client: Any = None) -> Store:
    """Return the store at a place.

    Args:
        place: `s3://bucket/prefix`; or a sink, whose options then say how S3 is reached, SSE-C and paying included.
        client: a boto3 client for S3, for a path.

    Raises:
        ConfigurationError: the path is no S3 URL, or there is a client beside a sink.
    """
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
