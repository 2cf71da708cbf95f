"""A directory for `PYTHONPATH`, see `outfall.testing.crash_points`. Not to be imported as a package."""
