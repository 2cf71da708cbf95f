"""Silence about faults that are there on purpose."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the engine's warnings from the terminal, where Python brings them when nobody has configured logging."""
    logger, silent = logging.getLogger("outfall"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)
