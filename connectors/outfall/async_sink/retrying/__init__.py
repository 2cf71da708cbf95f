"""When to try again, and when not: classified errors, back-off, deadlines, a budget and a clock per host."""

from __future__ import annotations

from outfall.async_sink.retrying.budget import RetryBudget
from outfall.async_sink.retrying.classify import (
    Classifier,
    ErrorAction,
    by_type,
    first_of,
    network_errors,
    outfall_errors,
)
from outfall.async_sink.retrying.policy import Backoff, RetryPolicy
from outfall.async_sink.retrying.retry_gate import NotBefore

__all__ = [
    "Backoff",
    "Classifier",
    "ErrorAction",
    "NotBefore",
    "RetryBudget",
    "RetryPolicy",
    "by_type",
    "first_of",
    "network_errors",
    "outfall_errors",
]
