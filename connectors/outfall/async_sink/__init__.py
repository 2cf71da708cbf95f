"""The base of sinks for destinations that are asked and answer: HTTP APIs, queues, streams.

After Flink's AsyncSinkBase (FLIP-171, https://cwiki.apache.org/confluence/display/FLINK/FLIP-171%3A+Async+Sink, and
FLIP-451): batching, requests side by side, retries of what failed in part, limits and state are done here, so that a
destination is a light shim: conversion, one call and its limits.

`AsyncSink` and `AsyncSinkPartition` (or `BlockingSinkPartition`, for a call that blocks) are what a shim derives from.
"""

from __future__ import annotations

from outfall.async_sink.blocking import BlockingSinkPartition
from outfall.async_sink.buffer import BufferedRequests, BufferedRequestsSerializer
from outfall.async_sink.host_state import HostState, RetryBudget, shared_host_state
from outfall.async_sink.limiting import AimdLimiter, FixedLimiter, GradientLimiter, Limiter
from outfall.async_sink.options import AsyncSinkOptions, AsyncSinkSettings
from outfall.async_sink.partition import AsyncSinkPartition
from outfall.async_sink.requests import EventQueue, RefusedEntry, Request, RequestOutcome, RequestResult
from outfall.async_sink.retrying import Backoff, Classifier, ErrorAction, RetryPolicy, by_type, first_of
from outfall.async_sink.sink import AsyncSink

__all__ = [
    "AimdLimiter",
    "AsyncSink",
    "AsyncSinkOptions",
    "AsyncSinkPartition",
    "AsyncSinkSettings",
    "Backoff",
    "BlockingSinkPartition",
    "BufferedRequests",
    "BufferedRequestsSerializer",
    "Classifier",
    "ErrorAction",
    "EventQueue",
    "FixedLimiter",
    "GradientLimiter",
    "HostState",
    "Limiter",
    "RefusedEntry",
    "Request",
    "RequestOutcome",
    "RequestResult",
    "RetryBudget",
    "RetryPolicy",
    "by_type",
    "first_of",
    "shared_host_state",
]
