"""PostgreSQL: rows in a table, each in it once, at the speed of COPY."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from outfall.options import parse_options

if find_spec("psycopg") is None:
    raise ImportError(
        "outfall.postgres needs psycopg, which is not installed. What to do: pip install 'outfall[postgres]'."
    )

from outfall.postgres.options import PostgresOptions
from outfall.postgres.sink import PostgresSink

__all__ = ["PostgresSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> PostgresSink:
    """Make a sink from Spark options (`dsn`, `table`, `write_mode`, …; also spelled `writeMode`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    parsed = parse_options(PostgresOptions, options)
    return PostgresSink(**(dict(parsed) | {"dsn": parsed.dsn.get_secret_value()}))
