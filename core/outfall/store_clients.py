"""What the errors of an object store's own client mean, which are no OSErrors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from outfall.errors import ConfigurationError, OutfallError, TransientError

# By name: which clients there are depends on what is installed, and none of them is loaded here.
_UNSET = {
    "azure.core.exceptions.ClientAuthenticationError",
    "botocore.exceptions.NoAuthTokenError",
    "botocore.exceptions.NoCredentialsError",
    "botocore.exceptions.NoRegionError",
    "botocore.exceptions.PartialCredentialsError",
    "botocore.exceptions.ProfileNotFound",
    "botocore.exceptions.SSOError",
    "google.auth.exceptions.DefaultCredentialsError",
}

_MISTAKES = (TypeError, AttributeError, NameError, AssertionError, LookupError, NotImplementedError)
"""Errors of programs, ours or the client's: nobody who operates a query can do anything about them."""


def is_unset(error: Exception) -> bool:
    """Whether a client says that it was given no credentials, or not all that it needs."""
    return any(f"{kind.__module__}.{kind.__name__}" in _UNSET for kind in type(error).__mro__)


def explain_client(error: Exception, what: str) -> OutfallError:
    """Make the error that says what to do about one of a client.

    Args:
        error: what the client raised.
        what: what failed, as the beginning of a sentence.
    """
    why = f"{type(error).__name__}: {error}"
    if is_unset(error):
        do = "give credentials and region where the store's client looks for them, for driver and executors"
        return ConfigurationError(what, why=why, do=do)
    return TransientError(
        what, why=why, do="see that the store is up and reachable, at the address that its client is given"
    )


class ExplainedClient:
    """A filesystem whose methods raise an OSError or an `OutfallError`, whatever its client raises."""

    def __init__(self, filesystem: Any, where: str) -> None:
        """Stand before a filesystem; `where` is the place in it, for texts."""
        self._filesystem = filesystem
        self._where = where

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return one of the filesystem's methods."""
        method = getattr(self._filesystem, name)

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except (OSError, OutfallError, *_MISTAKES):
                raise
            except Exception as error:
                raise explain_client(error, f"the object store's client failed at {self._where}") from error

        return call
