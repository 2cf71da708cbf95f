"""What a partition counts, in the epoch's record."""

from __future__ import annotations

from outfall.contexts import Metrics


class Counters:
    """The counters of one partition. Whole numbers that add up over tasks, under Flink's names where it has one.

    `num_records_out` and `num_bytes_out` count what was sent, each try anew; `sent` what was accepted, and `bytes` its
    size, as every sink counts what it has written; `failed` entries whose request failed, `dead_letters`, `timeouts`
    and `late_answers` what they say, `requests` the requests, `retries` those among them with an entry that was sent
    before. `send_time_ms` adds up the time from each request to its answer, so that by `requests` it is the mean.
    Gauges do not add up: `max_in_flight`, `max_limit` and `max_send_time_ms` are the largest that any task saw.
    """

    def __init__(self, metrics: Metrics) -> None:
        """Count into these metrics."""
        self._metrics = metrics
        self.current_send_time: float | None = None
        """Seconds from the last answered request to its answer (Flink's `currentSendTime`)."""

    def started(self, entries: int, size: int, *, again: bool, in_flight: int, limit: int) -> None:
        """Count a request that starts."""
        self._metrics.add("requests")
        self._metrics.add("num_records_out", entries)
        self._metrics.add("num_bytes_out", size)
        if again:
            self._metrics.add("retries")
        self._metrics.peak("max_in_flight", in_flight)
        self._metrics.peak("max_limit", limit)

    def answered(self, seconds: float, accepted: int, size: int, failed: int) -> None:
        """Count an answer: how many entries were accepted, of how many bytes, and how many are sent again."""
        self.current_send_time = seconds
        milliseconds = round(seconds * 1000)
        self._metrics.peak("max_send_time_ms", milliseconds)
        self._metrics.add("send_time_ms", milliseconds)
        self._metrics.add("sent", accepted)
        self._metrics.add("bytes", size)
        if failed:
            self._metrics.add("failed", failed)

    def timed_out(self, failed: int) -> None:
        """Count a request that was given up."""
        self._metrics.add("timeouts")
        self._metrics.add("failed", failed)

    def late(self) -> None:
        """Count an answer that came after its request was given up."""
        self._metrics.add("late_answers")

    def dead(self, entries: int) -> None:
        """Count dead letters."""
        self._metrics.add("dead_letters", entries)
