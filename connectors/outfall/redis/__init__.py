"""Redis: rows as hashes or strings, upserted and deleted by key.

```
options     the options of `RedisSink`, and the pattern of the keys
client      connections, the meaning of Redis' errors, and the records in the target
packing     rows as arguments of the script
script      the write that carries a version, as a script that the server runs
preflight   what the server's settings mean for the guarantee
sink        `RedisSink` and its partition
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("redis", "redis", "numpy")

from outfall.redis.options import RedisOptions
from outfall.redis.sink import RedisSink

__all__ = ["RedisSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> RedisSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return RedisSink(**dict(parse_options(RedisOptions, options)))
