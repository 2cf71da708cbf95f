"""A directory for `PYTHONPATH`; see `outfall.testing.crash_points`. Do not import it as a package."""
