"""The ledger of parts, for sinks whose tasks publish independently: a hash of rows, and checks of ledger rows."""

from outfall.errors import require_extra

require_extra("postgres", "numpy")
