"""S3: objects from multipart uploads that the driver completes, each row in them once. See docs/s3.md.

```
sink                what a user writes; options, location: what may be given, and which store an endpoint is of
target              the prefix before an epoch: first contact, and whether it is what the recovery data says
marker              who writes below a prefix, and which conditions the store honours
writer              in a task: rows into objects of their own epoch; rolling: or gathered over several
upload              the objects of one attempt, sent in parts; staged: what a task hands over
commit, manifest    on the driver: completes uploads, settles what is unclear, says what an epoch published
clean-up            uploads and pieces that nothing will publish any more
connection          whether a sink could write, without leaving anything there
readers             for whoever reads what was published, or clears up after a query that is gone
store, errors       the requests, made again while errors may pass; what S3's answers mean
```
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from outfall.errors import missing_extra
from outfall.options import parse_options

if find_spec("boto3") is None:
    raise missing_extra("boto3", "s3")

from outfall.s3.manifest import Manifest, ManifestEntry
from outfall.s3.options import S3Options
from outfall.s3.readers import clean_up_uploads, committed_keys, read_manifests
from outfall.s3.sink import S3Sink

__all__ = [
    "Manifest",
    "ManifestEntry",
    "S3Sink",
    "clean_up_uploads",
    "committed_keys",
    "read_manifests",
    "sink_from_options",
]


def sink_from_options(options: Mapping[str, str]) -> S3Sink:
    """Make a sink from Spark options (`bucket` and `prefix`, or `path`; `format`, `part_bytes`, also `partBytes`, …).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    parsed = dict(parse_options(S3Options, options))
    key = parsed["sse_customer_key"]
    return S3Sink(**(parsed | {"sse_customer_key": None if key is None else key.get_secret_value()}))
