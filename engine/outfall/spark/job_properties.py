"""Local properties of Spark: settings of the jobs that one thread of a classic session starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


@contextmanager
def job_properties(context: SparkContext, values: Mapping[str, str]) -> Iterator[None]:
    """Set properties for the jobs that the block starts on this thread, and restore the previous values.

    No session and no other thread sees them. A setting of the session has precedence over the property of its name.
    """
    before = {name: context.getLocalProperty(name) for name in values}
    for name, value in values.items():
        context.setLocalProperty(name, value)
    try:
        yield
    finally:
        # A session that was stopped meanwhile has no properties to restore, and must not hide the original error.
        with suppress(Exception):
            for name, earlier in before.items():
                context.setLocalProperty(name, earlier)  # type: ignore[arg-type]
