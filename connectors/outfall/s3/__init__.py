"""S3: objects from multipart uploads that the driver completes, with each row written exactly once. See docs/s3.md.

```
sink                `S3Sink`, the public class; options and location: its options and its store
target              the prefix before an epoch: checks on the first run, and against the recovery log
record              the step that writes below a prefix, and the conditional requests that the store supports
writer              in a task: writes rows to objects of their epoch; rolling: or gathers them over several epochs
upload              the objects of one attempt, sent in parts; staged: the committables
commit, manifest    on the driver: completes uploads, resolves unclear responses, writes the manifest of an epoch
clean_up            aborts uploads and deletes pieces that will never be published
connection          checks whether a sink could write, and removes everything that the check creates
readers             for readers of published objects, and for clean-up after an abandoned query
store, errors       the requests with retries, and the classification of S3's responses
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("s3", "boto3")

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
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    parsed = dict(parse_options(S3Options, options))
    key = parsed["sse_customer_key"]
    return S3Sink(**(parsed | {"sse_customer_key": None if key is None else key.get_secret_value()}))
