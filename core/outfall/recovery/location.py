"""Where a log can lie."""

from __future__ import annotations

from outfall.location import OBJECT_STORES, Location, Purpose

USE_INSTEAD = (
    "give recovery= an absolute path on a POSIX filesystem that driver and executors share and that has hard links"
    " (NFS does), or a URL of an object store: "
    f"{', '.join(f'{scheme}://' for scheme in OBJECT_STORES if scheme != 'memory')}"
)

_RECOVERY = Purpose(
    "recovery location",
    OBJECT_STORES,
    "is not known for creating a file exclusively, which all safety stands on",
    USE_INSTEAD,
)


def recovery_location(text: str) -> Location:
    """Understand an absolute path or a URL.

    Raises:
        ConfigurationError: it is relative, carries credentials, or no log can lie there.
    """
    return Location.parse(text, _RECOVERY)
