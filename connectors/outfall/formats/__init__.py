"""Formats: encode Arrow batches as bytes. Shared by all sinks that write bytes.

```
options             format, compression and how values are written; the formats by name, also of other distributions
stream              the format that options select, and the bytes of one file as a stream
base                the interface of a format, and compression in complete members
csv jsonl parquet text   one format each
types strings patterns   shared by text formats: types and their text, Arrow strings, time patterns
spark_only          formats that only Spark's own writer encodes
row_text            rows as JSON for users and dead letters
partition_paths     the partition directory of each row
```
"""

from outfall.formats.base import Encoder, last_byte, member
from outfall.formats.options import FormatArguments, FormatOptions
from outfall.formats.stream import can_grow, check_schema, encoder, one_schema, shape, suffix

__all__ = [
    "Encoder",
    "FormatArguments",
    "FormatOptions",
    "can_grow",
    "check_schema",
    "encoder",
    "last_byte",
    "member",
    "one_schema",
    "shape",
    "suffix",
]
