"""The driver's side of the target: checked before an epoch, opened after BEGIN, sealed before PREPARED."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import CommitterInitContext, PartSeal, SealContext, TargetContext
from outfall.errors import PartsChangedError, TargetLostError, TargetNotEmptyError, TransientError
from outfall.kafka.parts.cluster import PartProducer, PartsCluster
from outfall.kafka.parts.ledger import KafkaStepRecord, Ledger, StepName, beyond, check_not_ended, empty_row, written
from outfall.kafka.producer.transactions import ProducerFencedError
from outfall.part_ledger.checks import PartContext, PartRow, check_sealed, check_states, check_step
from outfall.possession.possession import FoundRecord, TargetPort, check_opened
from outfall.possession.possession import check as check_target
from outfall.retry_log import watch_thread, watcher
from outfall.target_record import TargetRecord, behind
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

DRIVER = "driver"
Parts = Mapping[StepName, Collection[str]]
_AT_ONCE = 8
"""Number of transactional ids initialized concurrently: each needs a client with a thread and connections."""

_TRIES = 3
"""Number of take-over attempts of a driver that is fenced by another one."""


class KafkaPartState(BaseModel):
    """The position of a part: its row count and its last commit in the ledger."""

    model_config = ConfigDict(frozen=True)

    next_offset: int = Field(default=0, ge=0)
    """Total rows of the part."""
    ledger_offset: int | None = None
    """The ledger offset of its last commit; `None` before the first."""
    commit: str | None = None
    """The random id of that commit."""
    ledger_id: str | None = None
    """The id of the ledger topic, if the brokers have topic ids."""
    topic_id: str | None = None
    """The id of the target topic, if all rows go to one."""


@dataclass(frozen=True)
class TopicIds:
    """The ids of the topics, which do not depend on their names."""

    ledger: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class TargetNames:
    """The names of the target and of everything that belongs to it."""

    topic: str | None
    """`None` if rows have their own topics."""
    ledger: str
    prefix: str
    """Prefix of the transactional ids."""

    def step(self, incarnation: str, step_id: str) -> StepName:
        """Return the name of a step's records."""
        return StepName(incarnation, step_id, self.topic or "*")

    def __str__(self) -> str:
        return f"the ledger {self.ledger} of {self.topic or 'all topics'}"


class PartsTarget(TargetPort[KafkaStepRecord]):
    """The target of one step in one epoch. Used on the driver.

    A producer that has initialized the transactional id of the driver is the lock of the record: see `open`. `ledger`
    has the records of the step as far as this process has read them. With `resume`, rows that this step wrote under
    other checkpoints are kept.
    """

    ahead = (
        "check that no other run of the query is active, and restore the newest recovery data. If it is lost, compare"
        " the topic with the source, and start with a new checkpoint and a new step_id"
    )

    def __init__(
        self, cluster: PartsCluster, names: TargetNames, step: StepName, ledger: Ledger, *, resume: bool
    ) -> None:
        self.where = str(names)
        self._resume = resume
        self._cluster = cluster
        self._names = names
        self._step = step
        self._ledger = ledger
        self.opened = TopicIds()
        """The ids of the topics that were opened, for the tasks."""

    def expect(self, context: TargetContext[KafkaPartState]) -> None:
        """Record which topics existed."""
        if any(state.commit is not None for state in context.states.values()):
            for name in filter(None, (self._names.ledger, self._names.topic)):
                self._cluster.expect(name)

    def ids(self) -> TopicIds:
        """Query the current topic ids."""
        target = None if self._names.topic is None else self._cluster.topic_id(self._names.topic)
        return TopicIds(self._cluster.topic_id(self._names.ledger), target)

    def check(self, context: TargetContext[KafkaPartState], ids: TopicIds) -> None:
        """Check the ledger against the recovery data, without changes.

        A failed driver may have left a transaction open in the ledger. This method does not wait for it: the driver
        that recorded a commit had read past it, so every recorded commit precedes all open transactions. Raises
        `TargetNotEmptyError`, `TargetLostError`, `TargetAheadError` or `FencedError`.
        """
        self._check_ids(context, ids)
        written = [state for state in context.states.values() if state.ledger_offset is not None]
        if ids.ledger is None:
            if written or context.completed is not None:
                raise self._lost(context, "the topic does not exist")
            return
        newest = max((state.ledger_offset for state in written if state.ledger_offset is not None), default=None)
        if beyond(newest, self._cluster.ledger(self._names.ledger)):
            raise self._lost(context, f"it ends before offset {newest}, which has a recorded commit")
        self._ledger.read_stable()
        self._check_ids(context, ids)
        check_target(self, context)

    def read(self) -> FoundRecord[KafkaStepRecord] | None:
        record = self._ledger.step()
        return None if record is None else FoundRecord(record)

    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        return self._lost(context, f"it has no epoch of this query, and {epoch} is recorded")

    def records(
        self, found: FoundRecord[KafkaStepRecord], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        check_not_ended(found.stored, PartContext(self.where, context.step_id, context.epoch))
        published = context.published if isinstance(context, TargetContext) else None
        # Published rows are compared part by part.
        return [replace(found.stored.record, epoch=published)]

    def check_data(self, found: FoundRecord[KafkaStepRecord] | None, context: TargetContext[KafkaPartState]) -> None:
        offsets = {part: state.next_offset for part, state in context.states.items()}
        rows = {part: found.record.row(part) for part, found in self._ledger.parts().items()}
        # A part has a record exactly if it has committed rows: a record is never missing for a moment.
        check_states(self._place(context), context.completed, rows, offsets, opened=True)

    def check_existing(self, context: TargetContext[KafkaPartState]) -> None:
        """Reject rows that this step wrote under another checkpoint, until this checkpoint has rows."""
        if self._resume or context.completed is not None or self._ledger.parts():
            return
        others = [name for name in self._ledger.incarnations() - {self._step.incarnation} if not self._is_ended(name)]
        epochs = [found.record.epoch for name in others for found in self._ledger.parts(name).values()]
        if epochs:
            raise TargetNotEmptyError(
                f"{self._names} has rows that step {context.step_id!r} wrote under another checkpoint, up to epoch"
                f" {max(epochs)}",
                step=context.step_id,
                why="that checkpoint is lost, or a job was killed after it had written, or another query uses the"
                " same step_id; this query would duplicate these rows",
                do="restore the checkpoint; or give the query a step_id of its own; or, after checking the rows, set"
                ' on_existing="resume" to append to it, which permanently ends the other query',
            )

    def opened_with(self, context: TargetContext[KafkaPartState]) -> int | None:
        """Return the number of parts of an unfinished epoch; `None` if there is none. Called after `check`."""
        step = self._ledger.step()
        return step.parts if step is not None and context.unfinished else None

    def open(self, context: TargetContext[KafkaPartState], parts: Sequence[str]) -> bool:
        """Write the step record of this BEGIN, and take over from earlier writers. Return whether it took over.

        Called after each BEGIN. The first epoch of a process, and each epoch after an unfinished one, take over. First
        the step record is written. Then `init_transactions` for every part fences each writer that has begun, and ends
        its open transaction. Then the ledger is read to its end. A writer that has not begun finds the step record.

        Raises `FencedError`, `PartsChangedError`, `TargetLostError` or `TargetAheadError`, see `check`; and
        `TransientError` if the brokers do not respond, or a transaction in the ledger stays open.
        """
        self._cluster.prepare_ledger(self._names.ledger)
        # Again: they may have been replaced since the check.
        self.opened = self.ids()
        self._check_ids(context, self.opened)
        reached("kafka: opening")
        if self._go_on(context, len(parts)):
            return False
        for _ in range(_TRIES - 1):
            try:
                return self._take_over(context, parts)
            except ProducerFencedError:
                # Fenced by an older driver, which will stop, or by a newer one: its step record shows which.
                self._cluster.step_aside()
        return self._take_over(context, parts)

    def _take_over(self, context: TargetContext[KafkaPartState], parts: Sequence[str]) -> bool:
        self._ledger.read_stable()
        driver = self._fresh(self._step)
        with closing_on_error(driver):
            own = {self._step: {*parts, *context.states}}
            self._read_past_orphans(own | (self._others() if self._resume else {}))
            former = self._checked_step(context)
            # A new number of parts is valid only once it is certain that nothing was committed with the former one.
            count = former.parts if former is not None and context.unfinished else len(parts)
            self._write_step(driver, context, count)
            before = () if former is None else map(str, range(former.parts))
            own[self._step] = {*own[self._step], *before}
            self._fence(own | (self._end_others() if self._resume else {}))
            self._ledger.read()
            self.check_existing(context)
            self.check_data(self.read(), context)
            if count != len(parts):
                self._refuse_new(context, count, len(parts))
                self._write_step(driver, context, len(parts))
        self._cluster.keep(self._id(self._step, DRIVER), driver, context.token)
        return True

    def seal(self, context: SealContext, parts: Sequence[PartSeal[KafkaPartState]]) -> None:
        """Compare every part's last commit with its state, at the ledger's end. Without changes.

        Raises `FencedError`, `ReplayDiffersError` or `TargetLostError`: see `check_step` and `check_sealed`.
        """
        end = self._ledger.read()
        _log.debug("step %s, epoch %d: read the ledger to offset %d", context.step_id, context.epoch, end)
        step, place = self._ledger.step(), self._place(context)
        check_not_ended(step, place)
        check_step(str(self._names), step.record if step else None, context)
        # A failed attempt may have committed rows to a part that got no rows in the retry.
        offsets = {part: 0 for part, found in self._ledger.parts().items() if found.record.epoch == context.epoch}
        offsets |= {part.part: part.state.next_offset for part in parts}
        check_sealed(place, self._rows(offsets), offsets)
        for part in parts:
            found = self._ledger.parts().get(part.part)
            if found is not None and found.record.commit != part.state.commit:
                raise behind(
                    str(self._names), "the last commit differs from that in the state",
                    step=context.step_id, epoch=context.epoch, part=part.part,
                )  # fmt: skip

    def write_tombstones(self, generation: int, *, whole: bool) -> int:
        """Remove the records of incarnations that this one has ended; with `whole` also its own.

        Returns their number.
        """
        if not self.superseded_keys(whole=whole):
            return 0
        producer = self._fresh(self._step)
        with closing_on_error(producer):
            self._ledger.read()
            step = self._ledger.step()
            keys = [] if step is not None and step.generation > generation else self.superseded_keys(whole=whole)
            if keys:
                producer.begin()
                producer.commit([written(key, None) for key in keys])
        producer.close()
        return len(keys)

    def superseded_keys(self, *, whole: bool, reread: bool = False) -> list[str]:
        """Return the keys of ended incarnations, as far as the ledger is read; with `reread` it is read again first."""
        if reread and self._cluster.topic_id(self._names.ledger) is not None:
            self._ledger.read_stable()
        ended = {name for name in self._ledger.incarnations() if self._is_ended(name)}
        keys = []
        for name in sorted(ended | ({self._step.incarnation} if whole else set())):
            step = replace(self._step, incarnation=name)
            keys += [f"{step.key}/{part}" for part in sorted(self._ledger.parts(name))]
            keys += [step.key] if self._ledger.step(name) is not None else []
        return keys

    # Records of steps. A driver that initializes the driver's id and then reads to the end has read every record
    # written under that id. Only a driver that initializes it later can add another.

    def _go_on(self, context: TargetContext[KafkaPartState], parts: int) -> bool:
        """Write the record without a take-over, if this process wrote the last one and its epoch is completed.

        No other driver has initialized the id since, or the write with the cached producer fails. A new producer inits
        the id and then reads the last record.
        """
        last = context.begun.get(context.last_generation)
        if last is None or context.unfinished:
            return False
        driver = self._cluster.kept(self._id(self._step, DRIVER), last)
        with suppress(TransientError):
            if driver is None and self._ledger.opened == last:
                driver = self._registered(last)
            if driver is None:
                return False
            with closing_on_error(driver):
                self._write_step(driver, context, parts)
            self._cluster.keep(self._id(self._step, DRIVER), driver, context.token)
            return True
        return False

    def _registered(self, last: str) -> PartProducer | None:
        driver = self._fresh(self._step)
        with closing_on_error(driver):
            self._ledger.read()
        step = self._ledger.step()
        if step is not None and step.token == last and step.ended_by is None:
            return driver
        driver.close()
        return None

    def _write_step(self, driver: PartProducer, context: TargetContext[KafkaPartState], parts: int) -> None:
        record = KafkaStepRecord(
            generation=context.generation, token=context.token, parts=parts, topic_id=self.opened.target
        )
        driver.begin()
        driver.commit([written(self._step.key, record)])
        self._ledger.opened = context.token
        reached("kafka: opened")

    def _checked_step(self, context: TargetContext[KafkaPartState]) -> KafkaStepRecord | None:
        found = self.read()
        if found is None:
            return None
        check_opened(self, found, context)
        self._check_ids(context, self.opened)
        return found.stored

    def _read_past_orphans(self, known: Parts) -> None:
        """Read to the end. If an orphaned transaction blocks the read, end it by initializing its id."""
        with suppress(TransientError):
            if self._ledger.is_stable():
                self._ledger.read()
                return
        self._fence(known)
        self._ledger.read()

    def _fence(self, known: Parts) -> None:
        """Fence every writer of these parts, and of those in the ledger, that has begun; end its open transaction."""
        reached("kafka: fencing")
        ids = [
            self._id(step, part)
            for step, parts in known.items()
            for part in sorted({*parts, *self._ledger.parts(step.incarnation)})
        ]
        with ThreadPoolExecutor(_AT_ONCE, initializer=watch_thread, initargs=(watcher(),)) as pool:
            for _ in pool.map(self._init, ids):
                pass

    def _init(self, transactional_id: str) -> None:
        producer = self._cluster.producer(transactional_id, self._names.ledger)
        try:
            producer.init()
        finally:
            producer.close()

    def _fresh(self, step: StepName) -> PartProducer:
        producer = self._cluster.producer(self._id(step, DRIVER), self._names.ledger)
        with closing_on_error(producer):
            producer.init()
        return producer

    def _id(self, step: StepName, part: str) -> str:
        return step.transactional_id(self._names.prefix, part)

    def _others(self) -> dict[StepName, Collection[str]]:
        """The parts that the step had under other checkpoints."""
        names = sorted(self._ledger.incarnations() - {self._step.incarnation})
        steps = {replace(self._step, incarnation=name): self._ledger.step(name) for name in names}
        return {step: [str(part) for part in range(found.parts if found else 0)] for step, found in steps.items()}

    def _end_others(self) -> dict[StepName, Collection[str]]:
        """Mark the records of earlier checkpoints as ended, and return their parts."""
        for step in self._others():
            if self._is_ended(step.incarnation):
                continue
            driver = self._fresh(step)
            with closing_on_error(driver):
                # It may have written since: with more parts, or the end mark of another checkpoint.
                self._read_past_orphans(self._others())
                found = self._ledger.step(step.incarnation) or KafkaStepRecord(generation=0, token="", parts=0)
                driver.begin()
                driver.commit([written(step.key, found.model_copy(update={"ended_by": self._step.incarnation}))])
            driver.close()
        return self._others()

    def _is_ended(self, incarnation: str) -> bool:
        step = self._ledger.step(incarnation)
        return step is not None and step.ended_by == self._step.incarnation

    # Checks.

    def _check_ids(self, context: TargetContext[KafkaPartState], ids: TopicIds) -> None:
        """Reject other topics than those of the states, and of the last BEGIN, whose epoch may have no states yet."""
        step = self._ledger.step()
        known: list[tuple[str | None, str | None, str | None, str | None]] = []
        if step is not None:
            known.append((None, self._names.topic, step.topic_id, ids.target))
        for part, state in context.states.items():
            known.append((part, self._names.ledger, state.ledger_id, ids.ledger))
            known.append((part, self._names.topic, state.topic_id, ids.target))
        for lost, name, was, now in known:
            if was and was != now:
                raise self._lost(context, f"the topic {name} was deleted, and possibly recreated", lost)

    def _refuse_new(self, context: TargetContext[KafkaPartState], former: int, now: int) -> None:
        """Reject new parts while an epoch is partly committed: its rows would go to other parts and be duplicated."""
        completed = -1 if context.completed is None else context.completed
        epochs = [found.record.epoch for found in self._ledger.parts().values()]
        unfinished = [epoch for epoch in epochs if epoch > completed]
        if unfinished:
            raise PartsChangedError(
                f"the number of parts changed from {former} to {now}, and epoch {unfinished[0]} is partly committed",
                step=context.step_id,
                epoch=context.epoch,
                why="its rows were routed to the former parts",
                do="run the query with the former number of parts until the epoch is completed, then change it",
            )

    def _place(self, context: TargetContext[KafkaPartState] | SealContext) -> PartContext:
        return PartContext(str(self._names), context.step_id, context.epoch)

    def _rows(self, parts: Iterable[str]) -> dict[str, PartRow]:
        found = self._ledger.parts()
        return {part: found[part].record.row(part) if part in found else empty_row(part) for part in parts}

    def _lost(self, context: TargetContext[KafkaPartState], what: str, part: str | None = None) -> TargetLostError:
        return behind(str(self._names), what, step=context.step_id, epoch=context.epoch, part=part)


@contextmanager
def closing_on_error(producer: PartProducer) -> Generator[None]:
    """Close a producer that must not be used after an error."""
    try:
        yield
    except BaseException:
        producer.close()
        raise
