"""Validates bucket and prefix, and identifies the store."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

from outfall.errors import ConfigurationError
from outfall.location import Location, Purpose
from outfall.storage.names import within_own
from outfall.urls import is_here

_PURPOSE = Purpose("path", {"s3": "s3", "s3a": "s3"}, "is not S3", "give s3://bucket/prefix")

_LONGEST_PREFIX = 512
"""Bytes. S3 allows 1,024 per key, and partition directories and a name follow."""

# Both as boto3 checks them, because old buckets have names that are invalid today. A multi-region access point has no
# region in its ARN. It is excluded, because it is not strongly consistent.
_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
_ACCESS_POINT = re.compile(
    r"arn:aws[^:]*:s3:[a-z0-9-]+:[0-9]{12}:accesspoint[/:][a-zA-Z0-9.-]{1,63}"
    r"|arn:aws[^:]*:s3-outposts:[a-z0-9-]+:[0-9]{12}:outpost[/:][a-zA-Z0-9-]{1,63}[/:]accesspoint[/:][a-zA-Z0-9-]{1,63}"
)
_AWS = ("amazonaws.com", "amazonaws.com.cn")
"""Bucket names in China belong to a separate AWS partition."""
_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def bucket_and_prefix(path: Any, bucket: Any, prefix: Any) -> tuple[str, str]:
    """Return bucket and prefix, without `/` at the ends, from the two options or from `path`.

    Raises `ValueError` if both or neither are given, or one is invalid. The message omits values that may contain a
    secret.
    """
    if path is not None:
        if bucket or prefix:
            raise ValueError("path contains bucket and prefix: give either path, or bucket and prefix")
        bucket, prefix = _split(path)
    elif not bucket:
        raise ValueError("bucket or path is missing")
    return _checked_bucket(bucket), _checked_prefix(prefix or "")


def store_name(endpoint_url: str | None) -> str:
    """Return a name for the store of an endpoint. All endpoints of AWS have the same name, as buckets are global.

    Without an endpoint, the one that boto3 takes from the environment counts.
    """
    given = (endpoint_url, *map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")))
    parts = urlsplit(next(filter(None, given), f"https://s3.{_AWS[0]}"))
    host = (parts.hostname or "").rstrip(".")
    for aws in _AWS:
        if host.endswith(f".{aws}"):
            return aws
    # Host names are case-insensitive, and all names of this machine count as one.
    return f"{'localhost' if is_here(host) else host}:{parts.port or _PORTS[parts.scheme]}"


def _split(path: Any) -> tuple[str, str]:
    if not isinstance(path, str):
        raise ValueError("path must be a string")
    try:
        # Only for its checks: keys are literal, so `..` is not resolved.
        scheme = Location.parse(path, _PURPOSE).scheme
    except ConfigurationError as error:
        raise ValueError(error.what) from error
    if scheme != "s3":
        raise ValueError(f"{path!r} is not s3://bucket/prefix")
    bucket, _, prefix = path.partition("://")[2].partition("/")
    return bucket, prefix


def _checked_bucket(bucket: Any) -> str:
    if not isinstance(bucket, str) or not (_BUCKET.fullmatch(bucket) or _ACCESS_POINT.fullmatch(bucket)):
        raise ValueError(
            "bucket must be the name of a bucket alone, or the ARN of an access point; s3://bucket/prefix is a path"
        )
    return bucket


def _checked_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str):
        raise ValueError("prefix must be a string")
    found = prefix.strip("/")
    if len(found.encode()) > _LONGEST_PREFIX:
        raise ValueError(f"the prefix is longer than {_LONGEST_PREFIX} bytes")
    if _CONTROL.search(found):
        raise ValueError("the prefix contains control characters, which listings cannot show")
    if own := within_own(found):
        raise ValueError(f"the prefix is in {own}, where a sink keeps its own objects, and which readers skip")
    if found and any(level in ("", ".", "..") for level in found.split("/")):
        raise ValueError(
            f"the prefix {found!r} has an empty level or a level '.' or '..': keys keep them literally, and Hadoop's"
            " paths cannot name them"
        )
    return found
