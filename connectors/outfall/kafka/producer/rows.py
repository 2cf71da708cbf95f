"""The producer of plain rows, which can report rejected ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Message

from outfall.kafka.options import ProducerOptions
from outfall.kafka.producer.base import OF_RECORD, OF_TOPIC, KafkaProducer
from outfall.kafka.records import KafkaRecords

Refused = Callable[[int, str, str], None]
"""Called with a permanently rejected record: its index in its batch, Kafka's error name, and the error text."""


class RowProducer(KafkaProducer):
    """Sends rows that anybody can read once they are acknowledged. See `KafkaProducer` for the arguments."""

    def __init__(self, brokers: str, options: ProducerOptions, timeout: float) -> None:
        super().__init__(brokers, options, timeout)
        self._refused: list[tuple[Refused, int, KafkaError]] = []

    def _settings(self) -> dict[str, Any]:
        return {"on_delivery": self._failed, "delivery.report.only.error": True}

    def send(self, records: KafkaRecords, refused: Refused | None = None) -> None:
        """Add records of one batch to the local queue, as in `KafkaProducer`.

        `refused` is called for each permanently rejected record, in this or a later call. Without it such a record
        raises an error in this or a later call.
        """
        self._add(records, records.more if refused is None else self._reporting(records, refused))

    def _reporting(self, records: KafkaRecords, refused: Refused) -> Iterator[dict[str, Any]]:
        """Yield the further arguments of each record."""
        # One after the other: all of a batch at once would take a third longer.
        reported = partial(self._reported, refused, not isinstance(records.topics, str))
        for row in range(len(records)):
            more = {} if records.more is None else records.more[row]
            more["on_delivery"] = partial(reported, row)
            yield more

    def _reported(
        self, refused: Refused, by_row: bool, row: int, error: KafkaError | None, message: Message | None
    ) -> None:
        """Process the report on one record. Called when librdkafka serves its events."""
        if error is None:
            return
        if error.code() in (OF_RECORD | OF_TOPIC if by_row else OF_RECORD):
            self._refused.append((refused, row, error))
        else:
            self._failed(error, message)

    def _serve(self, seconds: float) -> None:
        """Serve librdkafka's events, and pass on rejected records in this thread."""
        super()._serve(seconds)
        reports, self._refused = self._refused, []
        for refused, row, error in reports:
            refused(row, error.name(), self._masked(error))
