"""Resolves URLs of recovery locations: the built-in stores, and those of installed distributions."""

from __future__ import annotations

from typing import Any

from outfall import plugins
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError
from outfall.location import LOCAL, REMOTE
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.location import proposing
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.sqlite import SCHEME, SqliteRecoveryConfig
from outfall.urls import masked, scheme_of


def recovery_config_for(sink: Any, location: str | RecoveryConfig) -> RecoveryConfig:
    """Return what `recovery_config` returns. Its error proposes the database of the sink, if it has one."""
    with proposing(resolve(sink).recovery_location):
        return recovery_config(location)


def recovery_config(location: str | RecoveryConfig) -> RecoveryConfig:
    """Return the configuration for a URL, or the given one. Called on the driver: tasks get the configuration.

    A URL is an absolute path, `file:///…`, `scheme://…` of a filesystem in fsspec that `outfall.recovery.location`
    lists, `sqlite:///directory`, or a URL whose scheme an installed distribution registers in the group
    `outfall.recovery`, as Outfall does for `kafka://host:9092/prefix`.

    Raises:
        ConfigurationError: The URL is relative, or its scheme is unknown.
        ImportError: The extra of the store is not installed. The text names it.
    """
    if isinstance(location, RecoveryConfig):
        return location
    if not isinstance(location, str) or not location.strip():
        raise ConfigurationError(
            f"a recovery location is a URL or a RecoveryConfig, not {location!r}", do="pass an absolute path or a URL"
        )
    scheme = scheme_of(location)
    if scheme == SCHEME:
        return SqliteRecoveryConfig(_directory(location))
    if scheme and scheme != LOCAL and scheme not in REMOTE:
        make = plugins.find(plugins.RECOVERY, scheme)
        if make is not None:
            return _checked(make(location), scheme)
    return CheckpointRecoveryConfig(location)


def _checked(made: object, scheme: str) -> RecoveryConfig:
    if not isinstance(made, RecoveryConfig):
        raise ConfigurationError(
            f"the entry point for {scheme}: in {plugins.RECOVERY} returns {type(made).__name__}",
            why="a recovery store is a RecoveryConfig",
            do="register a function that takes a URL and returns a RecoveryConfig",
        )
    return made


def _directory(url: str) -> str:
    """Return the path in `sqlite:///path`, taken literally as in every other location."""
    rest = url.partition(":")[2]
    if not rest.startswith("///"):
        raise ConfigurationError(
            f"{masked(url)!r} has no absolute path", do=f"write {SCHEME}:///directory, with three slashes"
        )
    return rest[2:]
