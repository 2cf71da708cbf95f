"""The warning about secrets in options of `format("outfall")` that Spark shows.

Spark shows the options of a query of Spark Connect on its page `/connect/`, in its event log, plans and EXPLAIN, and
those of SQL's `INSERT … WITH` also on a classic session. It redacts only options whose name or value contains a word
such as `password`, and only in some of these places. Measured on PySpark 4.3.0.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from outfall.secret_values import names_a_secret
from outfall.urls import split_url

_log = logging.getLogger(__name__)

_LIBPQ = re.compile(r"\bpass(?:word|phrase)\s*=\s*(\S+)", re.IGNORECASE)


def warn_of_visible_secrets(options: Mapping[str, str], checkpoint: str | None) -> None:
    """Log one line if Spark shows a secret that an option contains. Call it where `format("outfall")` plans.

    The line names the options and contains no value. A stream plans each of its epochs: only the first one in this
    process, usually that of the whole run, logs it.

    Args:
        options: All options, as Spark passes them.
        checkpoint: The checkpoint of a stream; `None` for a batch job.
    """
    names = tuple(name for name, text in options.items() if _holds_literal_secret(name, text))
    where = _where_shown(stream=checkpoint is not None)
    if names and where:
        (_warn if checkpoint is None else _warn_once)(names, where, checkpoint)


def _where_shown(*, stream: bool) -> str | None:
    if _on_connect():
        return "is visible: Spark Connect shows it on its page /connect/, in the event log, in plans and in EXPLAIN"
    # A classic session shows those of SQL only, which has no streams. The process that plans cannot tell SQL by itself.
    return None if stream else "is visible if the job is SQL's INSERT: Spark shows it in its UI, event log and EXPLAIN"


def _on_connect() -> bool:
    """Return whether this process plans for Spark Connect: only its sessions have artifacts of their own."""
    return os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"


def _warn(names: tuple[str, ...], where: str, checkpoint: str | None) -> None:
    _log.warning(
        'format("outfall"): the secret of %s %s; give it as env:NAME or file:PATH, and replace the secret',
        ", ".join(names),
        where,
    )


_warn_once = lru_cache(maxsize=256)(_warn)


def _holds_literal_secret(name: str, text: str) -> bool:
    if _is_reference(text):
        return False
    if (entries := _mapping(text)) is not None:
        return any(_holds_literal_secret(key, str(value)) for key, value in entries.items())
    return names_a_secret(name) or any(not _is_reference(secret) for secret in _passwords(text))


def _is_reference(text: str) -> bool:
    return not text or text.startswith(("env:", "file:"))


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _passwords(text: str) -> Iterator[str]:
    """Yield the passwords of a URL, or of libpq's pairs."""
    if "://" not in text:
        yield from _LIBPQ.findall(text)
        return
    try:
        url = split_url(text)
    except ValueError:
        return  # The sink refuses it.
    yield from [url.password] if url.password else []
    yield from (value for name, value in parse_qsl(url.query) if names_a_secret(name))
