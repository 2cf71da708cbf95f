"""S3: objects from multipart uploads that the driver completes, each row in them once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from outfall.errors import missing_extra
from outfall.options import parse_options

if find_spec("boto3") is None:
    raise missing_extra("boto3", "s3")

from outfall.s3.manifest import Manifest, ManifestEntry
from outfall.s3.options import S3Options
from outfall.s3.readers import committed_keys, read_manifests, sweep_uploads
from outfall.s3.sink import S3Sink

__all__ = [
    "Manifest",
    "ManifestEntry",
    "S3Sink",
    "committed_keys",
    "read_manifests",
    "sink_from_options",
    "sweep_uploads",
]


def sink_from_options(options: Mapping[str, str]) -> S3Sink:
    """Make a sink from Spark options (`bucket` and `prefix`, or `path`; `format`, `part_size`, also `partSize`, …).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    parsed = dict(parse_options(S3Options, options))
    key = parsed["sse_customer_key"]
    return S3Sink(**(parsed | {"sse_customer_key": None if key is None else key.get_secret_value()}))
