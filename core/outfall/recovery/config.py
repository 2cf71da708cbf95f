"""Where recovery data lives: configurations, and their URLs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from urllib.parse import urlsplit

from outfall.errors import ConfigurationError
from outfall.recovery.log import RecoveryLog


class RecoveryConfig(ABC):
    """Says where recovery data lives. Picklable; opens nothing until `open` is called, on the driver or in a task."""

    @abstractmethod
    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step, which is made on first use.

        Raises:
            ConfigurationError: the location cannot hold a log; the text says what to use instead.
        """

    @abstractmethod
    def url(self) -> str:
        """Return the location as text, free of secrets; `recovery_config(url)` gives an equal configuration."""


def recovery_config(location: str | RecoveryConfig) -> RecoveryConfig:
    """Make a configuration from its URL, or return the one given.

    A URL is an absolute path, `file:///…`, or `scheme://…` of a filesystem that fsspec knows and
    `outfall.recovery.location` lists.

    Raises:
        ConfigurationError: the URL is relative, or its scheme is not known.
    """
    from outfall.recovery.checkpoint import CheckpointRecoveryConfig

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
