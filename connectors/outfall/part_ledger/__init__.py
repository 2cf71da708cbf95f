"""The ledger of parts, for sinks whose tasks publish independently: a hash of rows, and checks of ledger rows."""

from importlib.util import find_spec

from outfall.errors import missing_extra

if find_spec("numpy") is None:
    raise missing_extra("numpy", "postgres")
