"""Formats: Arrow batches in, bytes out. Shared by every sink that writes bytes.

```
options             format, compression and how values are written, under the names of Spark's writers
stream              the formats by name; the bytes of one file as they come about
base                what a format must do, and compression in whole members
csv jsonl parquet text   one format each
types strings patterns   what formats of text share: types and their text, Arrow's strings, patterns of times
row_text            rows as JSON for people and dead letters
partition_paths     the directory that each row goes to
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
