"""The target as the recovery data knows it: checked before an epoch, taken over after BEGIN, sealed before PREPARED."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import PartSeal, SealContext, TargetContext
from outfall.errors import PartsChangedError, TargetLostError, TargetNotEmptyError, TransientError
from outfall.kafka.parts.cluster import PartProducer, PartsCluster
from outfall.kafka.parts.ledger import Ledger, StepName, StepRecord, beyond, check_not_ended, empty_row, written
from outfall.kafka.producer import ProducerFencedError
from outfall.part_ledger.checks import PartPlace, PartRow, check_sealed, check_states, check_step
from outfall.retry_log import watch_thread, watcher
from outfall.target_record import behind, check_opening, check_record
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

DRIVER = "driver"
Parts = Mapping[StepName, Collection[str]]
_AT_ONCE = 8
"""How many transactional ids are initialised side by side: each is a client with a thread and connections."""

_TRIES = 3
"""How often a driver takes over that another one fences meanwhile."""


class KafkaPartState(BaseModel):
    """How far a part counts, and where that stands in the ledger."""

    model_config = ConfigDict(frozen=True)

    next_offset: int = Field(default=0, ge=0)
    """How many rows the part has had."""
    ledger_offset: int | None = None
    """Where the record of its last commit lies; `None` before the first."""
    commit: str | None = None
    """The random id of that commit."""
    ledger_id: str | None = None
    """The id of the ledger's topic, from brokers that have one."""
    topic_id: str | None = None
    """The id of the target's topic, where all rows go to one."""


@dataclass(frozen=True)
class TopicIds:
    """Which topics these are, whatever they are called."""

    ledger: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class TargetNames:
    """What the target and all that belongs to it are called."""

    topic: str | None
    """`None` where each row names its topic."""
    ledger: str
    prefix: str
    """What transactional ids begin with."""

    def step(self, incarnation: str, step_id: str) -> StepName:
        """Return the name of a step's records."""
        return StepName(incarnation, step_id, self.topic or "*")

    def __str__(self) -> str:
        return f"the ledger {self.ledger} of {self.topic or 'all topics'}"


class PartsTarget:
    """One step's target in one epoch. Used on the driver.

    Args:
        cluster: where it is.
        names: what is called how.
        step: whose records.
        ledger: the step's records, as far as this process has read them.
    """

    def __init__(self, cluster: PartsCluster, names: TargetNames, step: StepName, ledger: Ledger) -> None:
        self._cluster = cluster
        self._names = names
        self._step = step
        self._ledger = ledger

    def ids(self) -> TopicIds:
        """Ask which topics these are now."""
        target = None if self._names.topic is None else self._cluster.topic_id(self._names.topic)
        return TopicIds(self._cluster.topic_id(self._names.ledger), target)

    def check(self, context: TargetContext[KafkaPartState], ids: TopicIds, *, resume: bool) -> None:
        """Refuse a ledger that is not what the recovery data says, and change nothing.

        A driver that died may have left a transaction open in the ledger. Nothing is waited for here: what is recorded
        was read past by whoever recorded it, so it lies before everything that is open now.

        Raises:
            TargetNotEmptyError, TargetLostError, TargetAheadError, FencedError.
        """
        self._check_ids(context, ids)
        written = [state for state in context.states.values() if state.ledger_offset is not None]
        if ids.ledger is None:
            if written or context.completed is not None:
                raise self._lost(context, "its topic is not there")
            return
        newest = max((state.ledger_offset for state in written if state.ledger_offset is not None), default=None)
        if beyond(newest, self._cluster.ledger(self._names.ledger)):
            raise self._lost(context, f"it ends before offset {newest}, where a commit is recorded")
        self._ledger.read_stable()
        mine = self._ledger.step()
        if mine is not None:
            self._check_mine(context, mine)
        elif context.completed is not None:
            raise self._lost(context, f"it knows of no epoch of this query, and {context.completed} is recorded")
        if not resume:
            self._refuse_others(context)
        self._check_parts(context)

    def opened_with(self, context: TargetContext[KafkaPartState]) -> int | None:
        """Return how many parts an epoch that was left open has; `None` where there is none. Called after `check`."""
        step = self._ledger.step()
        return step.parts if step is not None and context.unfinished else None

    def open(self, context: TargetContext[KafkaPartState], parts: Sequence[str], *, resume: bool) -> bool:
        """Write who writes from now on, and take over from whoever wrote before.

        Called after each BEGIN. A process's first epoch, and one after an epoch that was left open, take over: the
        step's record first; then `init_transactions` for every part, which fences each writer that has begun and ends
        what it left open; then the ledger is read to its end. A writer that has not begun finds the step's record.

        Returns:
            Whether it took over.

        Raises:
            FencedError, PartsChangedError, TargetLostError, TargetAheadError: see `check`.
            TransientError: the brokers do not answer, or a transaction in the ledger stays open.
        """
        self._cluster.prepare_ledger(self._names.ledger)
        reached("kafka: opening")
        kept = self._kept(context)
        if kept is not None and self._write_kept(kept, context, len(parts)):
            return False
        for _ in range(_TRIES - 1):
            try:
                return self._take_over(context, parts, resume=resume)
            except ProducerFencedError:
                # By a driver that is older and stops, or that is newer: what it writes will tell.
                self._cluster.step_aside()
        return self._take_over(context, parts, resume=resume)

    def _take_over(self, context: TargetContext[KafkaPartState], parts: Sequence[str], *, resume: bool) -> bool:
        self._ledger.read_stable()
        driver = self._fresh(self._step)
        with closing_on_error(driver):
            own = {self._step: {*parts, *context.states}}
            self._read_past_orphans(own | (self._others() if resume else {}))
            former = self._checked_step(context)
            # A new number of parts counts once it is known that nothing was committed under the former one.
            count = former.parts if former is not None and context.unfinished else len(parts)
            self._write_step(driver, context, count)
            before = () if former is None else map(str, range(former.parts))
            own[self._step] = {*own[self._step], *before}
            self._fence(own | (self._end_others() if resume else {}))
            self._ledger.read()
            if not resume:
                self._refuse_others(context)
            self._check_parts(context)
            if count != len(parts):
                self._refuse_new(context, count, len(parts))
                self._write_step(driver, context, len(parts))
        self._cluster.keep(self._id(self._step, DRIVER), driver, context.token)
        return True

    def seal(self, context: SealContext, parts: Sequence[PartSeal[KafkaPartState]]) -> None:
        """Compare every part's last commit with its state, at the ledger's end. Changes nothing.

        Raises:
            FencedError, ReplayDiffersError, TargetLostError: see `check_step` and `check_sealed`.
        """
        end = self._ledger.read()
        _log.debug("step %s, epoch %d: the ledger is read to offset %d", context.step_id, context.epoch, end)
        step, place = self._ledger.step(), self._place(context)
        check_not_ended(step, place)
        check_step(str(self._names), step.record() if step else None, context)
        # What an attempt wrote that was lost may be in a part for which no rows came again.
        offsets = {part: 0 for part, found in self._ledger.parts().items() if found.record.epoch == context.epoch}
        offsets |= {part.part: part.state.next_offset for part in parts}
        check_sealed(place, self._rows(offsets), offsets)
        for part in parts:
            found = self._ledger.parts().get(part.part)
            if found is not None and found.record.commit != part.state.commit:
                raise behind(
                    str(self._names), "the last commit is another one than the state's",
                    step=context.step_id, epoch=context.epoch, part=part.part,
                )  # fmt: skip

    def bury(self, generation: int, *, whole: bool) -> int:
        """Remove the records of incarnations that this one has ended, and with `whole` its own. Returns how many."""
        if not self.buried(whole=whole):
            return 0
        producer = self._fresh(self._step)
        with closing_on_error(producer):
            self._ledger.read()
            step = self._ledger.step()
            keys = [] if step is not None and step.generation > generation else self.buried(whole=whole)
            if keys:
                producer.begin()
                producer.commit([written(key, None) for key in keys])
        producer.close()
        return len(keys)

    def buried(self, *, whole: bool, anew: bool = False) -> list[str]:
        """Return the keys that `bury` would remove, as far as the ledger has been read; with `anew` it is read now."""
        if anew and self._cluster.topic_id(self._names.ledger) is not None:
            self._ledger.read_stable()
        ended = {name for name in self._ledger.incarnations() if self._is_ended(name)}
        keys = []
        for name in sorted(ended | ({self._step.incarnation} if whole else set())):
            step = replace(self._step, incarnation=name)
            keys += [f"{step.key}/{part}" for part in sorted(self._ledger.parts(name))]
            keys += [step.key] if self._ledger.step(name) is not None else []
        return keys

    # Records of steps. Who initialises the driver's id and then reads to the end sees every record that was ever
    # written under it, and none is added but by who initialises it later.

    def _kept(self, context: TargetContext[KafkaPartState]) -> PartProducer | None:
        """The producer that wrote the record of the last BEGIN, if that was this process and its epoch is completed."""
        last = context.begun.get(context.last_generation)
        if last is None or context.unfinished:
            return None
        return self._cluster.kept(self._id(self._step, DRIVER), last)

    def _write_kept(self, driver: PartProducer, context: TargetContext[KafkaPartState], parts: int) -> bool:
        """Write the record without reading: nobody has initialised the id since the last one, or this fails."""
        try:
            self._write_step(driver, context, parts)
        except TransientError:
            driver.close()
            return False
        except BaseException:
            driver.close()
            raise
        self._cluster.keep(self._id(self._step, DRIVER), driver, context.token)
        return True

    def _write_step(self, driver: PartProducer, context: TargetContext[KafkaPartState], parts: int) -> None:
        record = StepRecord(generation=context.generation, token=context.token, parts=parts)
        driver.begin()
        driver.commit([written(self._step.key, record)])
        reached("kafka: opened")

    def _checked_step(self, context: TargetContext[KafkaPartState]) -> StepRecord | None:
        found = self._ledger.step()
        check_not_ended(found, self._place(context))
        if found is not None:
            check_opening(str(self._names), found.record(), context)
        return found

    def _read_past_orphans(self, known: Parts) -> None:
        """Read to the end; what a writer that died left open in the way of that is ended by initialising its id."""
        with suppress(TransientError):
            if self._ledger.is_stable():
                self._ledger.read()
                return
        self._fence(known)
        self._ledger.read()

    def _fence(self, known: Parts) -> None:
        """Fence every writer of these parts, and of those in the ledger, that has begun; end what it left open."""
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
        """Write into the records of earlier checkpoints that they are ended, and return their parts."""
        for step in self._others():
            if self._is_ended(step.incarnation):
                continue
            driver = self._fresh(step)
            with closing_on_error(driver):
                # It may have written since: with more parts, or ended by somebody else.
                self._read_past_orphans(self._others())
                found = self._ledger.step(step.incarnation) or StepRecord(generation=0, token="", parts=0)
                driver.begin()
                driver.commit([written(step.key, found.model_copy(update={"ended_by": self._step.incarnation}))])
            driver.close()
        return self._others()

    def _is_ended(self, incarnation: str) -> bool:
        step = self._ledger.step(incarnation)
        return step is not None and step.ended_by == self._step.incarnation

    # Checks.

    def _refuse_others(self, context: TargetContext[KafkaPartState]) -> None:
        """Refuse rows that this step wrote under another checkpoint, until there are some of this one."""
        if context.completed is not None or self._ledger.parts():
            return
        others = [name for name in self._ledger.incarnations() - {self._step.incarnation} if not self._is_ended(name)]
        epochs = [found.record.epoch for name in others for found in self._ledger.parts(name).values()]
        if epochs:
            raise TargetNotEmptyError(
                f"{self._names} knows rows that step {context.step_id!r} wrote under another checkpoint, up to epoch"
                f" {max(epochs)}",
                step=context.step_id,
                why="that checkpoint is lost, or a job was killed after it had written, or another query uses the same"
                " step_id; this one would write rows again that are there",
                do="restore the checkpoint; or give the query a step_id of its own; or, knowing what is there, set"
                ' on_existing="resume" to add to it, which ends the other for good',
            )

    def _check_ids(self, context: TargetContext[KafkaPartState], ids: TopicIds) -> None:
        for part, state in context.states.items():
            for name, was, now in (
                (self._names.ledger, state.ledger_id, ids.ledger), (self._names.topic, state.topic_id, ids.target),
            ):  # fmt: skip
                if was and was != now:
                    raise self._lost(context, f"the topic {name} was deleted, and perhaps made again", part)

    def _check_mine(self, context: TargetContext[KafkaPartState], mine: StepRecord) -> None:
        check_not_ended(mine, self._place(context))
        # What is published is compared part by part.
        check_record(
            str(self._names), mine.record(), replace(context, published=None),
            ahead="see that no other run of the query is active, and restore the newest recovery data. If that is lost,"
            " compare the topic with the source, and start with a new checkpoint and a step_id of its own",
        )  # fmt: skip

    def _check_parts(self, context: TargetContext[KafkaPartState]) -> None:
        offsets = {part: state.next_offset for part, state in context.states.items()}
        rows = {part: found.record.row(part) for part, found in self._ledger.parts().items()}
        # A part has a record exactly when rows were committed: there is no time in which one may be missing.
        check_states(self._place(context), context.completed, rows, offsets, opened=True)

    def _refuse_new(self, context: TargetContext[KafkaPartState], former: int, now: int) -> None:
        """Refuse new parts while an epoch is committed in part: its rows would go to other parts, and be doubled."""
        completed = -1 if context.completed is None else context.completed
        epochs = [found.record.epoch for found in self._ledger.parts().values()]
        unfinished = [epoch for epoch in epochs if epoch > completed]
        if unfinished:
            raise PartsChangedError(
                f"there are {now} parts, there were {former}, and epoch {unfinished[0]} is committed in part",
                step=context.step_id,
                epoch=context.epoch,
                why="its rows were routed to the former parts",
                do="run the query with the former parts until the epoch is completed, then change them",
            )

    def _place(self, context: TargetContext[KafkaPartState] | SealContext) -> PartPlace:
        return PartPlace(str(self._names), context.step_id, context.epoch)

    def _rows(self, parts: Iterable[str]) -> dict[str, PartRow]:
        found = self._ledger.parts()
        return {part: found[part].record.row(part) if part in found else empty_row(part) for part in parts}

    def _lost(self, context: TargetContext[KafkaPartState], what: str, part: str | None = None) -> TargetLostError:
        return behind(str(self._names), what, step=context.step_id, epoch=context.epoch, part=part)


@contextmanager
def closing_on_error(producer: PartProducer) -> Generator[None]:
    """Close a producer that is not to be used after an error."""
    try:
        yield
    except BaseException:
        producer.close()
        raise
