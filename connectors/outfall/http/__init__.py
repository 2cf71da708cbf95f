"""HTTP: rows in the bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("http", "requests", "aiohttp")

from outfall.http.items import ItemResponse
from outfall.http.options import HttpOptions
from outfall.http.sink import HttpSink
from outfall.http.transport import Response

__all__ = ["HttpSink", "ItemResponse", "Response", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> HttpSink:
    """Create a sink from Spark options (`url`, `body`, `bearer_token`, …; also spelled `bearerToken`).

    Raises `ConfigurationError`, which lists every unknown or wrong option.
    """
    given: dict[str, Any] = dict(parse_options(HttpOptions, options))
    return HttpSink(given.pop("url"), **given)
