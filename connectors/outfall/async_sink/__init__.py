"""Base of sinks for request/response destinations: HTTP APIs, queues, streams.

After Flink's AsyncSinkBase (FLIP-171, https://cwiki.apache.org/confluence/display/FLINK/FLIP-171%3A+Async+Sink, and
FLIP-451). The base implements batching, concurrent requests, retries of partial failures, limits and state. A
destination is a light shim: conversion, one call and its limits.

```
options         Flink's options, and those of retries
sink            what a shim says of its destination
partition       a task's entries: buffered, sent, retried
blocking        the same for a blocking call, in threads
buffer          the entries that wait, also across epochs
requests        a request, its outcome, and the queue through which results come back to the thread of the task
loop            when the next request is sent, and how long the task waits
outcomes        what becomes of the entries of a request: counted, retried, dead letters
retrying        what an error means; when an entry is sent again
limiting        how many requests a host gets at the same time
host_state      what the tasks of a process share about a host: its limit, its pauses, the budget of retries
responses       HTTP responses, read within bounds
```

Whose objects a module creates:

```
loop → requests
partition → buffer, loop, outcomes, requests
sink → buffer, host_state, limiting
```

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
