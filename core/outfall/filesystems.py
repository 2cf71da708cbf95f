"""fsspec filesystems, opened for a location."""

from __future__ import annotations

from typing import Any

import fsspec

from outfall.errors import ConfigurationError, OutfallError
from outfall.location import PACKAGES, Location


def open_filesystem(location: Location, wanted_for: str) -> tuple[Any, str]:
    """Open the filesystem of a location; credentials come from its own environment and fsspec's configuration.

    Args:
        location: not a local one.
        wanted_for: what needs it, as the beginning of a sentence.

    Returns:
        The filesystem, whose listings come from no cache, and the location's path in it.

    Raises:
        ImportError: a package is missing; the text names it.
        ConfigurationError: its client cannot be made, as without credentials.
    """
    try:
        # A listing from a cache would hide what another process has just written.
        filesystem, path = fsspec.url_to_fs(location.url(), use_listings_cache=False)
    except ImportError as error:
        package = PACKAGES.get(location.scheme)
        needed = repr(package) if package else f"what fsspec needs for {location.scheme}: ({error})"
        raise ImportError(
            f"{wanted_for} {location.url()} needs {needed}, which is not installed."
            f" What to do: {f'pip install {package}' if package else 'install it on driver and executors'}."
        ) from error
    except OutfallError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the filesystem of {location.url()!r} cannot be opened",
            why=f"{type(error).__name__}: {error}",
            do="give credentials where its client looks for them, for driver and executors",
        ) from error
    return filesystem, path
