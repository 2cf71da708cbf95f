"""The version of Outfall, in its code: executors may have that without the metadata of the distribution."""

__version__ = "0.1.0"


def outfall_version() -> str:
    """Return the version of this code, which driver and tasks compare."""
    return __version__
