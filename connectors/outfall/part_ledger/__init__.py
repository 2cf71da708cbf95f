"""The ledger of parts, for sinks whose tasks publish by themselves: a hash of rows, and what a part's row means."""
