"""HTTP: rows in the bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("http", "requests", "aiohttp")

from outfall.http.items import ItemResponse
from outfall.http.options import HttpOptions
from outfall.http.sink import HttpSink
from outfall.http.transport import Response

__all__ = ["HttpSink", "ItemResponse", "Response", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> HttpSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return HttpSink(**dict(parse_options(HttpOptions, options)))
