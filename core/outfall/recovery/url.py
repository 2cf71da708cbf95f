"""Recovery locations as URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

from outfall.errors import ConfigurationError
from outfall.kafka import KafkaRecoveryConfig
from outfall.location import masked
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.sqlite import SCHEME, SqliteRecoveryConfig


def recovery_config(location: str | RecoveryConfig) -> RecoveryConfig:
    """Make a configuration from its URL, or return the one given.

    A URL is an absolute path, `file:///…`, `scheme://…` of a filesystem that fsspec knows and
    `outfall.recovery.location` lists, `sqlite:///directory` or `kafka://host:9092/prefix`.

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
    if scheme == SCHEME:
        return SqliteRecoveryConfig(_directory(location))
    if scheme == "kafka":
        return KafkaRecoveryConfig.from_url(location)
    return CheckpointRecoveryConfig(location)


def _directory(url: str) -> str:
    """Return the path in `sqlite:///path`; taken literally, as in every other location."""
    rest = url.partition(":")[2]
    if not rest.startswith("///"):
        raise ConfigurationError(
            f"{masked(url)!r} names no absolute path", do=f"write {SCHEME}:///directory, with three slashes"
        )
    return rest[2:]
