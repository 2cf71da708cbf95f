"""Bucket and prefix, as they are given."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

from outfall.errors import ConfigurationError
from outfall.location import Location, Purpose

_PURPOSE = Purpose("path", {"s3": "s3", "s3a": "s3"}, "is not S3", "give s3://bucket/prefix")

_LONGEST_PREFIX = 512
"""Bytes; S3's keys end at 1,024, and directories and a name follow."""

# Both as boto3 checks them; old buckets have names that new ones may not have. An access point of several regions has
# no region in its ARN, and does not show at once what was written.
_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
_ACCESS_POINT = re.compile(
    r"arn:aws[^:]*:s3:[a-z0-9-]+:[0-9]{12}:accesspoint[/:][a-zA-Z0-9.-]{1,63}"
    r"|arn:aws[^:]*:s3-outposts:[a-z0-9-]+:[0-9]{12}:outpost[/:][a-zA-Z0-9-]{1,63}[/:]accesspoint[/:][a-zA-Z0-9-]{1,63}"
)
_AWS = ("amazonaws.com", "amazonaws.com.cn")
"""In China bucket names are those of a partition of its own."""
_HERE = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def bucket_and_prefix(path: Any, bucket: Any, prefix: Any) -> tuple[str, str]:
    """Return a bucket and a prefix, without `/` at its ends, from the two or from a path that is both in one.

    Raises:
        ValueError: what is given is neither, or both; texts do not repeat it where it may hold a secret.
    """
    if path is not None:
        if bucket or prefix:
            raise ValueError("path names bucket and prefix in one: give either path, or bucket and prefix")
        bucket, prefix = _split(path)
    elif not bucket:
        raise ValueError("bucket or path is missing")
    return _checked_bucket(bucket), _checked_prefix(prefix or "")


def store_name(endpoint_url: str | None) -> str:
    """Return which store an endpoint is of: the same text for all endpoints of AWS, where a bucket's name is one.

    Without an endpoint it is the one that boto3 takes from the environment.
    """
    given = (endpoint_url, *map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")))
    parts = urlsplit(next(filter(None, given), f"https://s3.{_AWS[0]}"))
    host = (parts.hostname or "").rstrip(".")
    for aws in _AWS:
        if host.endswith(f".{aws}"):
            return aws
    # A hostname has no case, and this machine has one name.
    return f"{'localhost' if host in _HERE else host}:{parts.port or _PORTS[parts.scheme]}"


def _split(path: Any) -> tuple[str, str]:
    if not isinstance(path, str):
        raise ValueError("path must be text")
    try:
        # For its refusals only: a key is what it is, and no directory whose `..` could be followed.
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
        raise ValueError("prefix must be text")
    found = prefix.strip("/")
    if len(found.encode()) > _LONGEST_PREFIX:
        raise ValueError(f"the prefix is longer than {_LONGEST_PREFIX} bytes")
    if _CONTROL.search(found):
        raise ValueError("the prefix holds control characters, which listings cannot show")
    if found and any(level in ("", ".", "..") for level in found.split("/")):
        raise ValueError(
            f"the prefix {found!r} has an empty level, or one that is '.' or '..': keys hold them as they are, and"
            " Hadoop's paths cannot name them"
        )
    return found
