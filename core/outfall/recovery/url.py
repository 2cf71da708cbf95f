"""Recovery locations as URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

from outfall.errors import ConfigurationError
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.config import RecoveryConfig


def recovery_config(location: str | RecoveryConfig) -> RecoveryConfig:
    """Make a configuration from its URL, or return the one given.

    A URL is an absolute path, `file:///…`, or `scheme://…` of a filesystem that fsspec knows and
    `outfall.recovery.location` lists.

    Raises:
        ConfigurationError: the URL is relative, or its scheme is not known.
    """
    if isinstance(location, RecoveryConfig):
        return location
    if not isinstance(location, str) or not location.strip():
        raise ConfigurationError(
            f"a recovery location is a URL or a RecoveryConfig, not {location!r}", do="give an absolute path or a URL"
        )
    scheme = urlsplit(location).scheme
    if scheme in {"sqlite", "kafka"}:
        raise ConfigurationError(
            f"recovery in {scheme}:// is not built yet", do="use a path or a URL of a filesystem, as the checkpoint is"
        )
    return CheckpointRecoveryConfig(location)
