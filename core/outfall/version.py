"""The version of Outfall in its code, because executors may lack the metadata of the distribution."""

__version__ = "0.1.0"


def outfall_version() -> str:
    """Return the version of this code. Driver and tasks compare it."""
    return __version__
