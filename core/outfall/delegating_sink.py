"""`DelegatingSink`: a sink that forwards each call to another sink."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    BufferedRows,
    CleanUpContext,
    CommittableMessage,
    Committer,
    CommitterInitContext,
    DeclaresCapabilities,
    DeclaresGuarantee,
    DeclaresRoutingKey,
    Guarantee,
    PartSeal,
    SaveMode,
    SealContext,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsCountCheck,
    SupportsDeadLetterSink,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
    SupportsStateSerializer,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    TargetCheck,
    TargetContext,
    WithCompatibleState,
    WriterInitContext,
)
from outfall.capability_checks import (
    SupportsChildren,
    SupportsNamedStates,
    bears_speculation,
    guarantee_of,
    in_save_mode,
    kind_of,
    needs_same_rows,
    requirements_of,
    routing_key_of,
    supports,
)
from outfall.serde import SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink

_FEATURES = (
    FixedPartitionedSink,
    DynamicSink,
    DeclaresGuarantee,
    DeclaresRoutingKey,
    SupportsChildren,
    SupportsCommitter,
    SupportsCountCheck,
    SupportsDeadLetterSink,
    SupportsBufferedRows,
    SupportsNamedStates,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
    SupportsStateSerializer,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    WithCompatibleState,
)


class DelegatingSink(
    FixedPartitionedSink[Any, Any],
    DynamicSink[Any],
    DeclaresCapabilities,
    DeclaresGuarantee,
    DeclaresRoutingKey,
    SupportsChildren,
    SupportsCommitter[Any],
    SupportsCountCheck,
    SupportsDeadLetterSink,
    SupportsBufferedRows[Any],
    SupportsNamedStates,
    SupportsPostCommitTopology[Any],
    SupportsPreCommitTopology[Any, Any],
    SupportsPreWriteTopology,
    SupportsSeal[Any],
    SupportsStateSerializer[Any],
    SupportsTarget[Any],
    SupportsWriterContext,
    SupportsWriterState[Any, Any],
    WithCompatibleState,
):
    """Has the capabilities of its worker and forwards each call to it.

    Base class of sinks with several write modes, each a class of its own, and of wrappers, which override the methods
    that they change. Kind, target and records are those of the worker: adding or removing a wrapper between restarts
    does not change the stored data.

    Args:
        worker: The sink that does the work, possibly one written for Bytewax.
    """

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        # Cached because it is used many times per epoch.
        self._capabilities = frozenset(feature for feature in _FEATURES if supports(worker, feature))

    def with_worker(self, worker: Any) -> Self:
        """Return a copy that delegates to another sink."""
        changed = copy.copy(self)
        DelegatingSink.__init__(changed, worker)
        return changed

    def capabilities(self) -> Collection[type]:
        return self._capabilities

    def list_parts(self) -> list[str]:
        return self.worker.list_parts()  # type: ignore[no-any-return]

    @property
    def part_fn(self) -> Callable[[str], int]:
        # The worker's own method, so that a caller can detect the default.
        return self.worker.part_fn  # type: ignore[no-any-return]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
        return self.worker.build_part(step_id, for_part, resume_state)

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return self.worker.build(step_id, worker_index, worker_count)

    def bind(self, context: WriterInitContext) -> Self:
        return self.with_worker(self.worker.bind(context))

    def guarantee(self) -> Guarantee:
        return guarantee_of(self.worker)

    def requires(self) -> Sequence[str]:
        return requirements_of(self.worker)

    def needs_same_rows(self) -> bool:
        return needs_same_rows(self.worker)

    def bears_speculation(self) -> bool:
        return bears_speculation(self.worker)

    def routing_key(self) -> str | None:
        return routing_key_of(self.worker)

    def children(self) -> Mapping[str, Any]:
        return self.worker.children()  # type: ignore[no-any-return]

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return self.worker.create_committer(context)  # type: ignore[no-any-return]

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return self.worker.committable_serializer()  # type: ignore[no-any-return]

    def add_pre_write_topology(self, df: Any) -> Any:
        return self.worker.add_pre_write_topology(df)

    def add_pre_commit_topology(self, results: Sequence[CommittableMessage[Any]]) -> Sequence[CommittableMessage[Any]]:
        return self.worker.add_pre_commit_topology(results)  # type: ignore[no-any-return]

    def write_result_serializer(self) -> SimpleVersionedSerializer[Any]:
        return self.worker.write_result_serializer()  # type: ignore[no-any-return]

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[Any]]) -> None:
        self.worker.add_post_commit_topology(committed)

    def check_counts(self, counts: Mapping[str, int], examples: Mapping[str, str]) -> None:
        self.worker.check_counts(counts, examples)

    def max_dead_letters(self) -> int:
        return self.worker.max_dead_letters()  # type: ignore[no-any-return]

    def buffered_rows(self, state: Any) -> BufferedRows:
        return self.worker.buffered_rows(state)  # type: ignore[no-any-return]

    def max_time_in_buffer(self) -> timedelta:
        return self.worker.max_time_in_buffer()  # type: ignore[no-any-return]

    def state_serializer(self) -> SimpleVersionedSerializer[Any]:
        return self.worker.state_serializer()  # type: ignore[no-any-return]

    def state_names(self, part: str) -> Sequence[str]:
        return self.worker.state_names(part)  # type: ignore[no-any-return]

    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        return self.worker.named_state_serializer(name)  # type: ignore[no-any-return]

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[Any]) -> Any:
        return self.worker.restore_writer(context, recovered)

    def keeps_writer_state(self) -> bool:
        return self.worker.keeps_writer_state()  # type: ignore[no-any-return]

    def writer_state_serializer(self) -> SimpleVersionedSerializer[Any]:
        return self.worker.writer_state_serializer()  # type: ignore[no-any-return]

    def compatible_writer_state_names(self) -> Sequence[str]:
        return self.worker.compatible_writer_state_names()  # type: ignore[no-any-return]

    def seal(self, context: SealContext, parts: Sequence[PartSeal[Any]]) -> None:
        self.worker.seal(context, parts)

    @property
    def chooses_bases_anew(self) -> bool:  # type: ignore[override]
        return self.worker.chooses_bases_anew  # type: ignore[no-any-return]

    def kind(self) -> str:
        return kind_of(self.worker)

    def target(self) -> str:
        return self.worker.target()  # type: ignore[no-any-return]

    def place(self) -> str:
        return self.worker.place()  # type: ignore[no-any-return]

    def owns_target(self) -> bool:
        return self.worker.owns_target()  # type: ignore[no-any-return]

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return self.with_worker(in_save_mode(self.worker, mode))

    def output_modes(self) -> Collection[str]:
        return self.worker.output_modes()  # type: ignore[no-any-return]

    def check_connection(self) -> Sequence[str]:
        return self.worker.check_connection()  # type: ignore[no-any-return]

    def row_schema(self) -> pa.Schema | None:
        return self.worker.row_schema()

    def check_schema(self, schema: pa.Schema) -> None:
        self.worker.check_schema(schema)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any] | TargetCheck[Any]:
        return self.worker.check_target(context)  # type: ignore[no-any-return]

    def open_target(self, context: TargetContext[Any]) -> None:
        self.worker.open_target(context)

    def clean_up(self, context: CleanUpContext) -> int:
        return self.worker.clean_up(context)  # type: ignore[no-any-return]

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str] | None:
        return self.worker.find_leftovers(context)  # type: ignore[no-any-return]

    def withdraw(self, context: CleanUpContext) -> None:
        self.worker.withdraw(context)
