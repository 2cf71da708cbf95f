"""`parts=N`: rows are routed by key to parts, and each part commits its rows of an epoch in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfall.capabilities import (
    CleanUpContext,
    DeclaresRoutingKey,
    Guarantee,
    PartSeal,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    TargetContext,
)
from outfall.kafka.delivery import KafkaDelivery
from outfall.kafka.options import KafkaOptions, ProducerOptions
from outfall.kafka.parts.cluster import PartsCluster
from outfall.kafka.parts.ledger import Ledger, StepName
from outfall.kafka.parts.part_writer import KafkaPartWriter
from outfall.kafka.parts.target import KafkaPartState, PartsTarget, TargetNames, TopicIds
from outfall.possession.possession import check_same_name
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink

Connect = Callable[[KafkaOptions, ProducerOptions], PartsCluster]


class KafkaPartDelivery(
    KafkaDelivery,
    FixedPartitionedSink[Any, KafkaPartState],
    SupportsSeal[KafkaPartState],
    SupportsStateSerializer[KafkaPartState],
    DeclaresRoutingKey,
):
    """A part's rows of an epoch and one ledger record are one transaction, committed by the task.

    Kafka Connect's exactly-once sources (KIP-618) store their offsets in the same way. `docs/kafka-protocol.md` argues
    why it is correct. `connect` takes the options of the sink and of a producer, and returns the same cluster for each
    call in a process.
    """

    def __init__(self, options: KafkaOptions, connect: Connect) -> None:
        super().__init__(options)
        self._connect = connect
        self._names = TargetNames(options.topic, options.ledger, options.transactional_id_prefix)
        self._read = LedgersRead()
        self._ids = TopicIds()
        self._took_over = ""
        """Id of the last take-over. Tasks get it from the driver, with `_ids`."""

    def kind(self) -> str:
        return "kafka/parts"

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def requires(self) -> Sequence[str]:
        return (
            *super().requires(),
            "readers with isolation.level=read_committed",
            "a source that replays the same rows of an epoch",
            "the same key= after a restart",
            "spark.speculation=false, because each copy of a task would fence the other",
        )

    def needs_same_rows(self) -> bool:
        return True

    def supports_speculation(self) -> bool:
        return False

    def routing_key(self) -> str | None:
        return "key" if self.options.value_format is None else self.options.key_column

    def list_parts(self) -> list[str]:
        return [str(index) for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: KafkaPartState | None) -> KafkaPartWriter:
        state = resume_state or KafkaPartState()
        return KafkaPartWriter(
            self._cluster(), self._names, state, self.writer(), self._ids, self._took_over, self.maker()
        )

    def state_serializer(self) -> ModelSerializer[KafkaPartState]:
        return ModelSerializer(KafkaPartState)

    def find_moved(self, context: TargetContext[KafkaPartState], recorded: str) -> None:
        # The name has no address. A copy of the topic, which may have another name, has other offsets and transactions.
        check_same_name(self.target(), recorded, "KafkaSink")

    def check_target(self, context: TargetContext[KafkaPartState]) -> Mapping[str, KafkaPartState]:
        target = self._target(context.incarnation, context.step_id)
        target.expect(context)
        self.check_topic()
        target.check(context, target.ids())
        # A state is recorded, and from then on its part must be listed. New parts may still be rejected.
        known = self.list_parts()[: target.opened_with(context)]
        return {part: KafkaPartState() for part in known if part not in context.states}

    def open_target(self, context: TargetContext[KafkaPartState]) -> None:
        self.make_topic()
        target = self._target(context.incarnation, context.step_id)
        if target.open(context, self.list_parts()):
            self._took_over = context.token
        self._ids = target.opened

    def check_connection(self) -> Sequence[str]:
        """Check the ledger too. Permission for the transactional ids is checked in the first epoch, before its rows."""
        found = super().check_connection()
        ledger = self._names.ledger
        there = self._cluster().topic_id(ledger) is not None
        return [*found, f"the ledger {ledger} {'exists' if there else 'is missing and will be created'}"]

    def seal(self, context: SealContext, parts: Sequence[PartSeal[KafkaPartState]]) -> None:
        """Check that each part's last commit matches its state, before the epoch is recorded. Idempotent.

        Raises `FencedError`, `ReplayDiffersError` or `TargetLostError`: see `check_step` and `check_sealed`.
        """
        self._target(context.incarnation, context.step_id).seal(context, parts)

    def clean_up(self, context: CleanUpContext) -> int:
        target = self._target(context.incarnation, context.step_id)
        return target.write_tombstones(context.generation, whole=context.final)

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        return self._target(context.incarnation, context.step_id).superseded_keys(whole=context.final, reread=True)

    def withdraw(self, context: CleanUpContext) -> None:
        self._target(context.incarnation, context.step_id).write_tombstones(context.generation, whole=True)

    def _cluster(self) -> PartsCluster:
        return self._connect(self.options, self.producer_options())

    def _target(self, incarnation: str, step_id: str) -> PartsTarget:
        cluster, step = self._cluster(), self._names.step(incarnation, step_id)
        ledger = self._read.of(step, lambda: Ledger(self._names.ledger, cluster.ledger(self._names.ledger), step))
        return PartsTarget(cluster, self._names, step, ledger, resume=self.options.existing.own == "keep")


class LedgersRead:
    """The ledger records that the driver has read, for the next epoch. Pickled empty, from driver to task."""

    def __init__(self) -> None:
        """Start empty."""
        self._ledgers: dict[StepName, Ledger] = {}

    def __reduce__(self) -> Any:
        return LedgersRead, ()

    def of(self, step: StepName, make: Callable[[], Ledger]) -> Ledger:
        """Return the ledger of a step, created on first use."""
        if step not in self._ledgers:
            self._ledgers[step] = make()
        return self._ledgers[step]
