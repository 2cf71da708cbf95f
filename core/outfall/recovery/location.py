"""Where a log can lie."""

from __future__ import annotations

from outfall.location import Location, Purpose

_SCHEMES = {
    "memory": "memory",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "az": "az",
}

USE_INSTEAD = (
    "give recovery= an absolute path on a POSIX filesystem that driver and executors share and that has hard links"
    " (NFS does), or a URL of an object store: "
    f"{', '.join(f'{scheme}://' for scheme in _SCHEMES if scheme != 'memory')}"
)

_RECOVERY = Purpose(
    "recovery location",
    _SCHEMES,
    "is not known for creating a file exclusively, which all safety stands on",
    USE_INSTEAD,
)


def recovery_location(text: str) -> Location:
    """Understand an absolute path or a URL.

    Raises:
        ConfigurationError: it is relative, carries credentials, or no log can lie there.
    """
    return Location.parse(text, _RECOVERY)
