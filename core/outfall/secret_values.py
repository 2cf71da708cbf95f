"""The values of secrets in options: read where they are used, and remembered to be masked."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from pydantic import SecretStr

from outfall.errors import ConfigurationError

_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token(?!.*(ur[il]|count|limit))|credential|auth(orization)?$|cookie|sas[-_.]?key|jaas|ssl\.key\.pem"
    r"|jwt|(api|account|customer|private|access|auth|subscription|functions?|master|shared)[-_.]?key(?![-_.]?(id|columns))",
    re.IGNORECASE,
)


def names_a_secret(name: str) -> bool:
    """Return whether an option of this name, or an entry of a mapping, headers or a query, holds a secret."""
    return bool(_NAME.search(name))


def resolve_secret(secret: SecretStr) -> str:
    """Return the value of a secret: of the variable for `env:NAME`, of the file for `file:PATH`, or the string itself.

    Call it where the secret is used, so that plans, checkpoints and pickled sinks do not contain it.

    Raises:
        ConfigurationError: The variable or the file does not exist on this host.
    """
    text = secret.get_secret_value()
    if text.startswith("env:"):
        return _remembered(text, _from_environment(text.removeprefix("env:")))
    if text.startswith("file:"):
        return _remembered(text, _from_file(text.removeprefix("file:")))
    return text


def known_values(*secrets: SecretStr | None) -> list[str]:
    """Return the values of secrets that this process has used, to mask them in texts of a client or a server.

    Of a variable or a file, they are the last ones that were read: it may have been exchanged since the request that
    the server repeats. Reads nothing, and never raises.
    """
    found: list[str] = []
    for text in (secret.get_secret_value() for secret in secrets if secret is not None):
        found += _read.get(text, []) if text.startswith(("env:", "file:")) else [text]
    return found


_read: dict[str, list[str]] = {}
"""The last values of each reference, the newest first."""
_KEPT = 8


def _remembered(reference: str, value: str) -> str:
    _read[reference] = list(dict.fromkeys([value, *_read.get(reference, [])]))[:_KEPT]
    return value


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigurationError(
            f"the environment variable {name!r}, which holds a secret, is not set {_here()}",
            # This also holds for the processes on the driver's host in which Spark plans format("outfall").
            why="Spark's Python workers have the environment that Spark was started with; a variable that is set in the"
            " driver later does not reach them",
            do=f'set it for the driver, and for the executors with .config("spark.executorEnv.{name}", …) before the'
            " session starts; or use file:PATH with a file on each host",
        )
    return value


def _from_file(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(
            f"the file {path!r}, which holds a secret, cannot be read {_here()}",
            why=error.strerror or type(error).__name__,
            do="create it at this path on the driver's host and on the host of each executor",
        ) from error
    except UnicodeDecodeError:
        # Without the cause, which contains the content of the file.
        raise ConfigurationError(
            f"the file {path!r}, which holds a secret, is not a text file",
            why="it is not in UTF-8",
            do="write the secret as UTF-8 text, for the driver and for the executors",
        ) from None


def _here() -> str:
    kind = "worker (Spark executor)" if _in_task() else "driver"
    return f"on this {kind}, host {socket.gethostname()}"


def _in_task() -> bool:
    """Return whether this process runs a Spark task. A process without pyspark does not."""
    context = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    return context is not None and context.get() is not None
