"""The options of every sink on the asynchronous base: Flink's, and those of retries."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Self, TypedDict

from pydantic import ByteSize, Field, model_validator

from outfall.async_sink.retrying import Backoff, RetryPolicy
from outfall.capabilities import MAX_DEAD_LETTERS
from outfall.options import Alias, Duration, SinkOptions, parse_duration
from outfall.row_logging import LogRows, log_rows_field


def _milliseconds(value: Any) -> int:
    return math.ceil(parse_duration(value) / timedelta(milliseconds=1))


class Concurrency(SinkOptions):
    """How many requests a task sends at the same time, which is also how many connections it needs."""

    max_in_flight_requests: int = Field(
        default=50,
        gt=0,
        description="Maximum number of concurrent requests per task. 1 keeps the order of rows.",
    )


class AsyncSinkOptions(Concurrency):
    """Base options of sinks on `AsyncSink`; a connector's options class inherits them and may change defaults.

    Names, meanings and checks are those of Flink's `AsyncSinkWriterConfiguration` (FLIP-171, FLIP-451). The aliases are
    the names of the same options in the other sinks.
    """

    aliases = {
        "batch_size": Alias("max_batch_size"),
        "batch_bytes": Alias("max_batch_size_in_bytes"),
        "flush_interval": Alias("max_time_in_buffer_ms", _milliseconds),
        "max_record_bytes": Alias("max_record_size_in_bytes"),
    }

    max_batch_size: int = Field(default=500, gt=0, description="Maximum number of entries in one request.")
    max_buffered_requests: int = Field(
        default=10_000,
        gt=0,
        description="Maximum number of buffered entries per task, which bounds its memory. Must exceed"
        " `max_batch_size`.",
    )
    max_batch_size_in_bytes: ByteSize = Field(
        default=ByteSize(5 << 20), gt=0, description="Maximum total size of the entries in one request."
    )
    max_time_in_buffer_ms: int = Field(
        default=5000,
        gt=0,
        description="Maximum time in milliseconds that an entry waits for a full request; `flush_interval` takes a"
        " duration. Checked when rows arrive. The end of the epoch sends everything.",
    )
    max_record_size_in_bytes: ByteSize = Field(
        default=ByteSize(1 << 20),
        gt=0,
        description="Maximum size of one entry, at most `max_batch_size_in_bytes`. A larger entry becomes a dead"
        " letter.",
    )
    request_timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="How long to wait for a response. After that the request is sent again, which may duplicate its"
        " rows.",
    )
    fail_on_timeout: bool = Field(
        default=False, description="Whether the query fails if a request times out, instead of sending it again."
    )
    across_epochs: bool = Field(
        default=False,
        description="Whether entries that do not fill a request are buffered across epochs, in the recovery data."
        " Without it each epoch sends everything.",
    )
    max_retries: int | None = Field(
        default=None, ge=0, description="Maximum number of retries per entry. Default: no limit until `retry_deadline`."
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5), description="How long an entry is retried after its first attempt."
    )
    retry_backoff: Duration = Field(
        default=timedelta(milliseconds=100),
        description="Maximum pause before the first retry. It doubles with each further retry. The actual pause is"
        " random, between zero and this value.",
    )
    max_retry_backoff: Duration = Field(default=timedelta(seconds=20), description="Maximum pause before any retry.")
    max_retry_after: Duration = Field(
        default=timedelta(minutes=5),
        description="Maximum pause that the destination can request, for example by `Retry-After`. Pauses end at"
        " `retry_deadline` at the latest.",
    )
    retry_budget: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Maximum share of retries among all requests while no request succeeds. Retries beyond it wait.",
    )

    max_dead_letters: int = Field(
        default=MAX_DEAD_LETTERS,
        ge=1,
        description="Maximum number of dead letters per epoch. One more fails the query, so that a wrong schema does"
        " not divert a whole epoch unnoticed.",
    )
    log_rows: LogRows = log_rows_field()

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
        """Return the retry policy of failed entries."""
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
    max_retry_after: timedelta | float | str
    retry_budget: float
    max_dead_letters: int
    log_rows: LogRows
