"""OpenSearch and Elasticsearch: rows as documents, upserted and deleted by id.

```
options     the options of `OpenSearchSink`
client      requests to a cluster: authentication, compression, the meaning of statuses, and the records of steps
names       names of indices and fields: which ones rows and options may choose, and what an alias stands for
bulk        the lines of a bulk request, and the meaning of each item of its response
sink        `OpenSearchSink` and its partition
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("opensearch", "urllib3", "numpy")

from outfall.opensearch.options import OpenSearchOptions
from outfall.opensearch.sink import OpenSearchSink

__all__ = ["OpenSearchSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> OpenSearchSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return OpenSearchSink(**dict(parse_options(OpenSearchOptions, options)))
