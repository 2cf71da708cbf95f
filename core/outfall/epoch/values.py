"""What a value is; see `outfall.values`."""

from outfall.values import to_batch, to_values

__all__ = ["to_batch", "to_values"]
