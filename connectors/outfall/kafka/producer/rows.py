"""The producer of plain rows, which can report rejected ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Message

from outfall.kafka.options import ProducerOptions
from outfall.kafka.producer.base import OF_RECORD, OF_TOPIC, KafkaProducer
from outfall.kafka.producer.refusals import RecordRefusal, Report, SentRecord, find_culprits
from outfall.kafka.records import KafkaRecords

_OWN = {KafkaError._UNKNOWN_PARTITION} | OF_TOPIC
"""Errors that concern a record by itself: they come from the partition or topic that it names."""
_MOST_ROWS = 100_000
_MOST_BYTES = 32 << 20
"""Records that are kept until the brokers have acknowledged them, in case that they must be sent again."""


class RowProducer(KafkaProducer):
    """Sends rows that every consumer can read once they are acknowledged. See `KafkaProducer` for the arguments."""

    def __init__(self, brokers: str, options: ProducerOptions, timeout: float) -> None:
        super().__init__(brokers, options, timeout)
        self._kept: list[tuple[KafkaRecords, Report]] = []
        self._kept_rows = 0
        self._kept_bytes = 0
        self._refusals: dict[int, RecordRefusal] = {}
        """By the position of a record among those that were sent since the last wait."""

    def _settings(self) -> dict[str, Any]:
        return {"on_delivery": self._failed, "delivery.report.only.error": True}

    def send(self, records: KafkaRecords, refused: Report | None = None) -> None:
        """Add records of one batch to the local queue, as in `KafkaProducer`.

        `refused` is called for each permanently rejected record, in this or a later call. Records that brokers refused
        only because of another one are sent again. Without `refused` a rejected record raises an error in this or a
        later call.
        """
        if refused is None:
            self._add(records, records.more)
            return
        self._add(records, self._reporting(records))
        self._kept.append((records, refused))
        self._kept_rows += len(records)
        self._kept_bytes += records.size
        if self._kept_rows >= _MOST_ROWS or self._kept_bytes >= _MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        super().flush()
        kept, self._kept = self._kept, []
        self._kept_rows = self._kept_bytes = 0
        refusals, self._refusals = self._refusals, {}
        if refusals:
            sent = [one for records, report in kept for one in _sent(records, report)]
            find_culprits(sent, refusals, self._send_again, self._report)

    def _send_again(self, sent: Sequence[SentRecord]) -> Mapping[int, RecordRefusal]:
        """Send records and wait for the brokers; return the refused ones by position."""
        mores = (
            one.more | {"on_delivery": partial(self._reported, one.own_topic, position)}
            for position, one in enumerate(sent)
        )
        self._add([one.record for one in sent], mores)
        super().flush()
        refusals, self._refusals = self._refusals, {}
        return refusals

    def _report(self, sent: SentRecord, error: KafkaError) -> None:
        sent.report(sent.row, error.name(), self._masked(error))

    def _reporting(self, records: KafkaRecords) -> Iterator[dict[str, Any]]:
        """Yield the further arguments of each record."""
        # One after the other: all of a batch at once would take a third longer.
        reported = partial(self._reported, _own_topics(records))
        first = self._kept_rows
        for row in range(len(records)):
            more = {} if records.more is None else dict(records.more[row])
            more["on_delivery"] = partial(reported, first + row)
            yield more

    def _reported(self, own_topic: bool, position: int, error: KafkaError | None, message: Message | None) -> None:
        """Process the report on one record. Called when librdkafka serves its events."""
        if error is None:
            return
        if error.code() in (OF_RECORD | OF_TOPIC if own_topic else OF_RECORD):
            # The client itself rejects a record without a message.
            self._refusals[position] = RecordRefusal(error, message is None or error.code() in _OWN)
        else:
            self._failed(error, message)


def _sent(records: KafkaRecords, report: Report) -> Iterator[SentRecord]:
    """Return the records of a batch one by one."""
    for row, record in enumerate(records):
        more = {} if records.more is None else records.more[row]
        yield SentRecord(record, more, _own_topics(records), report, row)


def _own_topics(records: KafkaRecords) -> bool:
    """Whether rows have their own topics."""
    return not isinstance(records.topics, str)
