"""Amazon DynamoDB: rows as items, upserted and deleted by the keys of their table.

```
options     the options of `DynamoDBSink`
attributes  rows to attribute values, and their size
table       what a table is: its keys, its TTL attribute; and the table with the records of steps
sink        `DynamoDBSink` and its partition: conditional writes, or batches without versions
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("dynamodb", "boto3", "numpy")

from outfall.dynamodb.options import DynamoDBOptions
from outfall.dynamodb.sink import DynamoDBSink

__all__ = ["DynamoDBSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> DynamoDBSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return DynamoDBSink(**dict(parse_options(DynamoDBOptions, options)))
