"""Base of sinks for request/response destinations: HTTP APIs, queues, streams.

After Flink's AsyncSinkBase (FLIP-171, https://cwiki.apache.org/confluence/display/FLINK/FLIP-171%3A+Async+Sink, and
FLIP-451). The base implements batching, concurrent requests, retries of partial failures, limits and state. A
destination is a light shim: conversion, one call and its limits.

A shim derives from `AsyncSink` and from `AsyncSinkPartition`, or from `BlockingSinkPartition` for a blocking call.
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
