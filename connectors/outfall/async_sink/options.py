"""The settings that every sink on the asynchronous base has: Flink's, and those of retrying."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Self, TypedDict

from pydantic import ByteSize, Field, model_validator

from outfall.async_sink.retrying import Backoff, RetryPolicy
from outfall.capabilities import MAX_DEAD_LETTERS
from outfall.options import Alias, Duration, SinkOptions, parse_duration


def _milliseconds(value: Any) -> int:
    return math.ceil(parse_duration(value) / timedelta(milliseconds=1))


class AsyncSinkOptions(SinkOptions):
    """Base of the options of a sink on `AsyncSink`; a connector's options class inherits it and may change defaults.

    Names, meanings and checks are those of Flink's `AsyncSinkWriterConfiguration` (FLIP-171, FLIP-451). The aliases are
    the names that the other sinks have for the same.
    """

    aliases = {
        "batch_size": Alias("max_batch_size"),
        "batch_bytes": Alias("max_batch_size_in_bytes"),
        "flush_interval": Alias("max_time_in_buffer_ms", _milliseconds),
        "max_record_bytes": Alias("max_record_size_in_bytes"),
    }

    max_batch_size: int = Field(default=500, gt=0, description="How many entries one request may hold.")
    max_in_flight_requests: int = Field(
        default=50,
        gt=0,
        description="How many requests of one task may be under way at a time. With 1 the order of rows is kept.",
    )
    max_buffered_requests: int = Field(
        default=10_000,
        gt=0,
        description="How many entries one task may hold back, which bounds its memory; more than `max_batch_size`.",
    )
    max_batch_size_in_bytes: ByteSize = Field(
        default=ByteSize(5 << 20), gt=0, description="How many bytes the entries of one request may have together."
    )
    max_time_in_buffer_ms: int = Field(
        default=5000,
        gt=0,
        description="After how many milliseconds entries are sent although they do not fill a request; `flush_interval`"
        " takes a duration. Checked while rows come in. The end of the epoch sends everything.",
    )
    max_record_size_in_bytes: ByteSize = Field(
        default=ByteSize(1 << 20),
        gt=0,
        description="How many bytes one entry may have. A larger one is a dead letter; at most"
        " `max_batch_size_in_bytes`.",
    )
    request_timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="How long a request may take. Without a response by then it is sent again, which may duplicate its"
        " rows.",
    )
    fail_on_timeout: bool = Field(
        default=False, description="Whether a request without an answer stops the query instead."
    )
    across_epochs: bool = Field(
        default=False,
        description="Whether entries that do not fill a request wait for the next epoch, in the recovery data. Without"
        " it every epoch sends everything.",
    )
    max_retries: int | None = Field(
        default=None, ge=0, description="How often an entry is sent again. Without it, until `retry_deadline`."
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5), description="For how long after its first try an entry is sent again."
    )
    retry_backoff: Duration = Field(
        default=timedelta(milliseconds=100),
        description="The longest pause before the first retry; doubled for each further one. The pause is random,"
        " between nothing and that.",
    )
    max_retry_backoff: Duration = Field(
        default=timedelta(seconds=20), description="The longest pause before any retry."
    )
    retry_budget: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Which share of the requests may be retries while nothing succeeds. Beyond it retries wait.",
    )

    max_dead_letters: int = Field(
        default=MAX_DEAD_LETTERS,
        ge=1,
        description="With a dead-letter sink: how many records of an epoch it may get; one more fails the query, so"
        " that a wrong schema does not divert an epoch in silence.",
    )

    @model_validator(mode="after")
    def _flinks_checks(self) -> Self:
        if self.max_buffered_requests <= self.max_batch_size:
            raise ValueError(
                f"max_buffered_requests ({self.max_buffered_requests}) must be greater than max_batch_size"
                f" ({self.max_batch_size})"
            )
        if self.max_record_size_in_bytes > self.max_batch_size_in_bytes:
            raise ValueError(
                f"max_batch_size_in_bytes ({int(self.max_batch_size_in_bytes)}) must not be less than"
                f" max_record_size_in_bytes ({int(self.max_record_size_in_bytes)})"
            )
        if self.max_retry_backoff < self.retry_backoff:
            raise ValueError("max_retry_backoff must not be less than retry_backoff")
        return self

    def retry_policy(self) -> RetryPolicy:
        """Return how failed entries are tried again."""
        return RetryPolicy(
            max_retries=self.max_retries,
            deadline=self.retry_deadline.total_seconds(),
            backoff=Backoff(self.retry_backoff.total_seconds(), self.max_retry_backoff.total_seconds()),
        )


class AsyncSinkSettings(TypedDict, total=False):
    """The fields of `AsyncSinkOptions` as keyword arguments of a sink's constructor (`**settings: Unpack[…]`)."""

    max_batch_size: int
    batch_size: int
    max_in_flight_requests: int
    max_buffered_requests: int
    max_batch_size_in_bytes: int | str
    batch_bytes: int | str
    max_time_in_buffer_ms: int
    flush_interval: timedelta | float | str
    max_record_size_in_bytes: int | str
    max_record_bytes: int | str
    request_timeout: timedelta | float | str
    fail_on_timeout: bool
    across_epochs: bool
    max_retries: int | None
    retry_deadline: timedelta | float | str
    retry_backoff: timedelta | float | str
    max_retry_backoff: timedelta | float | str
    retry_budget: float
    max_dead_letters: int
