"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in every run, and no clock: a machine that is busy proves nothing. What searches with fresh seeds
# says so itself, and is long.
settings.register_profile(
    "outfall", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("outfall")
