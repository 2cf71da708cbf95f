"""The ledger of parts, for sinks whose tasks publish by themselves: a hash of rows, and what a part's row means."""

from importlib.util import find_spec

from outfall.errors import missing_extra

if find_spec("numpy") is None:
    raise missing_extra("numpy", "postgres")
