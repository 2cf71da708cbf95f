"""One part in one attempt: its rows of an epoch and their ledger record are one transaction."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa

from outfall.capabilities import SupportsArrow, SupportsFlush, WriterInitContext
from outfall.errors import TerminalError, TransientError
from outfall.kafka.parts.cluster import PartProducer, PartsCluster
from outfall.kafka.parts.ledger import (
    Ledger,
    PartCommit,
    PartRecord,
    beyond,
    check_not_ended,
    empty_row,
    written,
)
from outfall.kafka.parts.target import KafkaPartState, TargetNames, TopicIds
from outfall.kafka.producer.transactions import ProducerFencedError
from outfall.kafka.records import KafkaRecordMaker
from outfall.part_ledger.checks import PartContext, PartCount, PartRow, check_step, missing_parts
from outfall.sinks import StatefulSinkPartition
from outfall.target_record import TargetRecord, behind
from outfall.trace_points import reached
from outfall.values import rows_to_batch


class KafkaPartWriter(StatefulSinkPartition[Any, KafkaPartState], SupportsFlush, SupportsArrow):
    """Writes a part's rows of an epoch exactly once, or finds them committed.

    The decision is made at the first row. If the part's state names the last commit of a cached producer as the newest
    one, that producer is used: either no other writer has written since, or the transaction fails. Otherwise the writer
    reads the step record, initializes the part's id, and reads the ledger to its end. If the epoch is committed, rows
    are only counted. If not, a transaction begins, and `flush` commits it. A part without rows sends no request.

    `state` is the part's recorded position. `ids` are the topic ids, for the state. `took_over` is the id of the
    take-over before this writer; a producer cached before it is fenced.
    """

    def __init__(
        self,
        cluster: PartsCluster,
        names: TargetNames,
        state: KafkaPartState,
        context: WriterInitContext,
        ids: TopicIds,
        took_over: str,
        maker: KafkaRecordMaker,
    ) -> None:
        self._maker = maker
        self._cluster = cluster
        self._names = names
        self._state = state
        self._context = context
        self._ids = ids
        self._took_over = took_over
        self._part = context.part or ""
        self._step = names.step(context.incarnation, context.step_id)
        self._id = self._step.transactional_id(names.prefix, self._part)
        self._place = PartContext(str(names), context.step_id, context.epoch)
        self._count = PartCount(self._part, state.next_offset)
        self._producer: PartProducer | None = None
        self._present: PartCommit | None = None
        """The part record of the epoch, if it is already committed."""
        self._flushed = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send rows within the part's transaction, or count committed rows."""
        if batch.num_rows == 0:
            return
        if self._flushed:
            raise self._misused("rows arrived after the part was flushed", "write all rows of an epoch before flush")
        if self._producer is None and self._present is None:
            self._producer = self._begin()
        if self._producer is not None:
            try:
                self._context.metrics.add("bytes", self._producer.send(batch, self._maker))
            except ProducerFencedError as error:
                raise self._fenced(error) from error
        self._count.hash.add(batch)

    def flush(self, end_of_input: bool) -> None:
        """Commit the rows and their record, or compare them with the committed ones.

        Raises `FencedError`, `ReplayDiffersError`, `TargetLostError` or `TargetAheadError`, see `missing_parts`; and
        `TransientError` if another attempt may succeed.
        """
        if self._flushed:
            return
        rows = self._count.row(self._context)
        if self._present is not None:
            self._missing(self._present, rows)
            self._context.metrics.add("rows_present", rows.rows)
            self._state = self._state_of(self._present)
        elif self._producer is not None:
            self._state = self._state_of(self._commit(rows))
        self._flushed = True

    def snapshot(self) -> KafkaPartState:
        """Return the position of the last commit. All rows are committed: a part writes nothing here."""
        if self._count.hash.rows and not self._flushed:
            raise self._misused(
                "the part's state is requested before its rows are committed", "call flush() before snapshot()"
            )
        return self._state

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _begin(self) -> PartProducer | None:
        """Begin a transaction; `None` if the epoch is committed."""
        kept = None
        if self._state.commit is not None:
            kept = self._cluster.kept(self._id, self._kept_as(self._state.commit))
        producer = kept or self._initialised()
        if producer is not None:
            self._producer = producer
            producer.begin()
            reached("kafka: begun")
        return producer

    def _initialised(self) -> PartProducer | None:
        ledger = self._ledger()
        # Before the id is initialized, so that a stale task fences no healthy one.
        ledger.read_stable(self._state.ledger_offset or 0)
        self._check_late(ledger)
        reached("kafka: before init")
        producer = self._producer = self._cluster.producer(self._id, self._names.ledger)
        producer.init()
        reached("kafka: after init")
        ledger.read(self._state.ledger_offset or 0)
        self._check_step(ledger)
        found = ledger.parts().get(self._part)
        if found is not None and found.record.epoch == self._context.epoch:
            self._present = found
            self._producer = None
            self._cluster.keep(self._id, producer, self._kept_as(found.record.commit))
            return None
        self._missing(found, self._count.row(self._context))
        return producer

    def _commit(self, rows: PartRow) -> PartCommit:
        producer = self._producer
        if producer is None:
            raise AssertionError("no transaction was begun")
        record = PartRecord.of(rows, self._context.token, secrets.token_hex(8))
        reached("kafka: before commit")
        self._context.metrics.add("sent", rows.rows)
        self._context.metrics.add_all(producer.peaks() | self._maker.counts())
        try:
            offset = producer.commit([written(f"{self._step.key}/{self._part}", record)])
        except ProducerFencedError as error:
            raise self._fenced(error) from error
        except TransientError as error:
            self.close()
            return self._resolved(record, error)
        reached("kafka: after commit")
        self._producer = None
        self._cluster.keep(self._id, producer, self._kept_as(record.commit))
        return PartCommit(offset, record)

    def _resolved(self, record: PartRecord, error: TransientError) -> PartCommit:
        """Resolve a commit whose response is lost: after the id is initialized, it has ended and can be read.

        Raises `TransientError` if nothing was committed; the next attempt writes the rows.
        """
        producer = self._producer = self._cluster.producer(self._id, self._names.ledger)
        producer.init()
        ledger = self._ledger()
        ledger.read(self._state.ledger_offset or 0)
        self._check_step(ledger)
        found = ledger.parts().get(self._part)
        if found is None or found.record != record:
            raise TransientError(
                "the part's rows were not committed",
                step=self._context.step_id,
                epoch=self._context.epoch,
                part=self._part,
                why=error.why or error.what,
                do=error.do or "nothing: the task is retried",
            ) from error
        self._context.metrics.add("commits_settled")
        self._producer = None
        self._cluster.keep(self._id, producer, self._kept_as(record.commit))
        return found

    def _ledger(self) -> Ledger:
        topic = self._cluster.ledger(self._names.ledger)
        if beyond(self._state.ledger_offset, topic):
            raise behind(
                self._place.target,
                f"it ends before offset {self._state.ledger_offset}, which has a recorded commit",
                step=self._context.step_id, epoch=self._context.epoch, part=self._part,
            )  # fmt: skip
        return Ledger(self._names.ledger, topic, self._step)

    def _check_late(self, ledger: Ledger) -> None:
        """Stop if a newer driver has written. Hidden records become visible after the id is initialized."""
        step = ledger.step()
        if step is not None and (step.ended_by is not None or step.generation > self._context.generation):
            self._check_step(ledger)

    def _check_step(self, ledger: Ledger) -> None:
        step = ledger.step()
        check_not_ended(step, self._place, self._part)
        check_step(self._place.target, step.record if step else None, self._context)

    def _missing(self, found: PartCommit | None, rows: PartRow) -> None:
        row = empty_row(self._part) if found is None else found.record.row(self._part)
        missing_parts(self._place, TargetRecord(self._context.generation), {self._part: row}, {self._part: rows})

    def _fenced(self, error: ProducerFencedError) -> Exception:
        """Return the error for a fenced writer: by a newer driver, or by another attempt of the same task."""
        self.close()
        ledger = self._ledger()
        ledger.read_stable(self._state.ledger_offset or 0)
        self._check_late(ledger)
        self._cluster.step_aside()
        return TransientError(
            "another attempt at this part has begun since",
            step=self._context.step_id,
            epoch=self._context.epoch,
            part=self._part,
            why=error.why or error.what,
            do="nothing: the task is retried, and finds the committed rows of the other attempt",
        )

    def _kept_as(self, commit: str) -> str:
        return f"{self._took_over}/{commit}"

    def _state_of(self, found: PartCommit) -> KafkaPartState:
        return KafkaPartState(
            next_offset=found.record.next_offset,
            ledger_offset=found.offset,
            commit=found.record.commit,
            ledger_id=self._ids.ledger,
            topic_id=self._ids.target,
        )

    def _misused(self, what: str, do: str) -> TerminalError:
        return TerminalError(
            f"{what}: {self._names}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            part=self._part,
            do=do,
        )
