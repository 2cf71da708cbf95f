"""The writer without `parts`: one task's rows, sent by a cached producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.dead_letter import NOT_CONVERTIBLE, DeadLetter
from outfall.errors import OutfallError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.kafka.producer.cache import PRODUCERS
from outfall.kafka.producer.rows import RowProducer
from outfall.kafka.records import KEY, KafkaRecords
from outfall.row_logging import RowLog
from outfall.sinks import StatelessSinkPartition
from outfall.trace_points import reached
from outfall.values import rows_to_batch

if TYPE_CHECKING:
    from outfall.kafka.delivery import KafkaStream


class KafkaStreamPartition(StatelessSinkPartition[Any]):
    """One task's rows. Sent records are acknowledged when `flush` returns."""

    def __init__(self, sink: KafkaStream) -> None:
        self._sink = sink
        self._context = sink.writer()
        self._maker = sink.maker()
        self._log = RowLog(sink.options.log_rows, (sink.options.key_column or KEY,))
        self._producer: RowProducer | None = None
        self._take: Callable[[Sequence[DeadLetter]], None] | None = None
        self._sent = 0
        self._bytes = 0
        self._flushed = True
        self._failure: BaseException | None = None

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows to the producer's queue; blocks while the queue is full."""
        if batch.num_rows:
            with self._failing():
                self._flushed = False
                for rows, records in self._records(batch):
                    self._sent += len(records)
                    self._bytes += records.size
                    refused = None if self._take is None else partial(self._refused, rows, records)
                    self._open().send(records, refused)

    def flush(self, end_of_input: bool) -> None:
        """Wait until the brokers have acknowledged all records.

        Raises `OutfallError` if not all are acknowledged; some may be in the topic.
        """
        with self._failing():
            if self._producer is not None:
                reached("kafka: before flush")
                self._producer.flush()
                reached("kafka: after flush")
                counts = {"sent": self._sent, "bytes": self._bytes} | self._producer.peaks()
                self._context.metrics.add_all(counts | self._maker.counts())
                self._sent = self._bytes = 0
            self._flushed = True

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Pass rejected rows to `take`, in the task's thread. Without it they fail the query."""
        self._take = take

    def close(self) -> None:
        """Return the producer to the cache, or drop it if it has unsent records."""
        producer, self._producer = self._producer, None
        if producer is not None:
            (PRODUCERS.keep if self._flushed and self._failure is None else PRODUCERS.drop)(producer)

    def _open(self) -> RowProducer:
        if self._producer is None:
            options = self._sink.options
            self._producer = PRODUCERS.take(
                RowProducer(options.brokers, self._sink.producer_options(), options.seconds)
            )
        return self._producer

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, KafkaRecords]]:
        """Convert rows to records.

        A batch that fails is halved, down to the row at fault, which becomes a dead letter.
        """
        try:
            yield batch, self._maker.make(batch)
            return
        except ValueRefusedError as error:
            if self._take is None:
                raise
            if batch.num_rows == 1:
                self._hand_over(batch, NOT_CONVERTIBLE, error.what)
                return
        half = batch.num_rows // 2
        yield from self._records(batch.slice(0, half))
        yield from self._records(batch.slice(half))

    def _refused(self, rows: pa.RecordBatch, records: KafkaRecords, row: int, code: str, reason: str) -> None:
        self._sent -= 1
        self._bytes -= len(records.values[row] or b"") + len((records.keys[row] or b"") if records.keys else b"")
        self._hand_over(rows.slice(row, 1), code, reason)

    def _hand_over(self, row: pa.RecordBatch, code: str, reason: str) -> None:
        context = self._context
        text = row_texts(row)[0]
        letter = DeadLetter(
            row=text,
            reason=reason,
            code=code,
            step=context.step_id,
            epoch=context.epoch,
            part=f"writer-{context.worker_index}",
            masked=lambda: self._log.described("a row", text, reason),
        )
        if self._take is not None:
            self._take([letter])
            context.metrics.add("dead_letters")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Store the error that ends this partition, so that no later call succeeds."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            if isinstance(error, OutfallError):
                error.locate(step=self._context.step_id, epoch=self._context.epoch)
            raise
