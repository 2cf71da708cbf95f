"""`ExactlyOnceSink`: writes each row exactly once by its source offset, even if the source replays it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsDeadLetters,
    SupportsDeadLetterSink,
    SupportsStateSerializer,
    SupportsTarget,
    SupportsWriterContext,
    TargetCheck,
    TargetContext,
    WriterInitContext,
)
from outfall.dead_letter import DeadLetter
from outfall.errors import ConfigurationError, ForeignRecordsError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.options import Names, SinkOptions, arguments_for, make_options, names_arguments
from outfall.row_logging import LogRows, RowLog, log_rows_field
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink, StatefulSinkPartition
from outfall.values import require_columns, rows_to_batch, spark_type
from outfall.wrappers.children import share
from outfall.wrappers.composite import Composite
from outfall.wrappers.composite_partition import CompositePartition, Opening
from outfall.wrappers.dead_lettering import WithDeadLetters
from outfall.wrappers.offsets import SeenOffsets, SeenState, split_by_seen

TARGET = "target"
SEEN = "seen"


class ExactlyOnceOptions(SinkOptions):
    """The source position of a row, and the tolerance for out-of-order rows."""

    offset: str = Field(description="The column with the offset of the row: a signed integer type, increasing, from 0.")
    source_partition: Names = Field(
        min_length=1,
        description="The columns that identify the source partition of the offset: integers, decimals, strings, binary,"
        " booleans, dates or timestamps.",
    )
    parts: int = Field(default=1, ge=1, description="Number of tasks that write. If it exceeds 1, pass `key=`.")
    window: int = Field(
        default=10_000, ge=0, description="Minimum number of offsets for which out-of-order rows are still recognized."
    )
    log_rows: LogRows = log_rows_field()


class ExactlyOnceSink(WithDeadLetters):
    """Drops rows that were written before, by their source offsets.

    Item type: rows with the columns of `offset` and `source_partition`; the target gets all columns.

    What must exist: the requirements of the target. The source gives a row the same offset at each read, as Kafka does.

    Unit of parallelism: `parts`. Set `key=` to a column of `source_partition`, or to another column that has the same
    value in every replay of a row.

    Guarantee: that of the target, even for a source that replays rows under new batch ids, because it was rewound or
    delivers at least once. Rows may arrive in any order. The seen offsets are stored as ranges, all of them while there
    are few gaps. With many gaps, ranges older than `window` offsets are discarded between epochs. A row in a discarded
    range is an error or a dead letter, and never dropped, because it may not have been written.

    Args:
        target: any sink without parts, or with the same number.
        offset: the column with the row's offset.
        source_partition: the column that identifies the source partition, or several, as `["topic", "partition"]`.
        parts: number of tasks that write.
        window: minimum number of offsets for which out-of-order rows are still recognized.
        log_rows: the part of a rejected row that errors show: `"none"`, its offset with `"keys"`, or `"full"`.
        dead_letter: a sink for rows below the window or without an offset, and for rows that the target rejects;
            without it they are errors.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: the target cannot be used.
    """

    @names_arguments
    def __init__(
        self,
        target: Any,
        *,
        offset: str,
        source_partition: str | Sequence[str],
        parts: int = 1,
        window: int = 10_000,
        log_rows: LogRows = "keys",
        dead_letter: Any = None,
    ) -> None:
        given = arguments_for(ExactlyOnceOptions, locals())
        self.options = make_options(ExactlyOnceOptions, given)
        super().__init__(OffsetDedup(target, self.options), dead_letter)


class OffsetDedup(Composite, SupportsDeadLetterSink):
    """The target, and the seen offsets. Rejected rows are errors unless there is a dead-letter sink."""

    kind_name = "exactly-once"
    shown_as = "ExactlyOnceSink"

    def __init__(self, target: Any, options: ExactlyOnceOptions) -> None:
        self.options = options
        super().__init__({TARGET: target, SEEN: SeenSink(options)})

    def capabilities(self) -> Collection[type]:
        return (*super().capabilities(), SupportsDeadLetterSink)

    def max_dead_letters(self) -> int:
        target = self.resolved[TARGET]
        rejects = SupportsDeadLetterSink in target.capabilities
        return target.sink.max_dead_letters() if rejects else super().max_dead_letters()

    def requires(self) -> Sequence[str]:
        return (*super().requires(), "a source that returns a row with the same offset in each read")

    def open(self, openings: Mapping[str, Opening]) -> ExactlyOncePartition:
        return ExactlyOncePartition(openings, self.options, self.writer_context())

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        for state in share(SEEN, context.states).values():
            self._check_columns(state, context.step_id)
            self._check_key(state, context)
        return super().check_target(context)

    def _check_key(self, state: SeenState, context: TargetContext[Any]) -> None:
        """Reject another routing of rows: a source partition would reach a part that has not seen its offsets."""
        if self.options.parts == 1 or None in (state.key, context.key) or state.key == context.key:
            return
        raise ForeignRecordsError(
            f"the rows were routed to the parts by key={state.key!r}, and now by key={context.key!r}",
            step=context.step_id,
            why="a part stores only the offsets that it has seen itself: rows that reach another part could be"
            " duplicated",
            do=f"set key={state.key!r} again, or start with a new checkpoint or another step_id",
        )

    def _check_columns(self, state: SeenState, step_id: str) -> None:
        """Reject other columns than those of the seen offsets."""
        for option in ("offset", "source_partition"):
            was, now = getattr(state, option), getattr(self.options, option)
            if was is None or (list(was) == list(now)):
                continue
            raise ForeignRecordsError(
                f"the seen offsets belong to {option}={was!r}, and now {option}={now!r} is set",
                step=step_id,
                why="offsets of one column do not apply to another: rows would be dropped without having been"
                " written, or duplicated",
                do=f"set {option}={was!r} again, or start with a new checkpoint or another step_id",
            )


class SeenSink(
    FixedPartitionedSink[Any, SeenState],
    SupportsStateSerializer[SeenState],
    SupportsTarget[SeenState],
    SupportsWriterContext,
    DeclaresGuarantee,
):
    """The parts, and the offsets that each has seen."""

    def __init__(self, options: ExactlyOnceOptions) -> None:
        self._options = options

    def kind(self) -> str:
        return "seen-offsets"

    def target(self) -> str:
        # With another number of parts, a source partition would reach a part that has not seen its offsets.
        return f"{self._options.parts} parts"

    def find_moved(self, context: TargetContext[SeenState], recorded: str) -> None:
        raise ConfigurationError(
            f"the sink has {self.target()} now, and {recorded} are recorded",
            why="a part has seen the offsets of its own source partitions only",
            do="restore the earlier number of parts",
        )

    def list_parts(self) -> list[str]:
        return [f"{index:05d}" for index in range(self._options.parts)]

    def build_part(self, step_id: str, for_part: str, resume_state: SeenState | None) -> SeenPart:
        state = SeenState() if resume_state is None else resume_state.model_copy(deep=True)
        columns: dict[str, Any] = {
            "offset": self._options.offset,
            "source_partition": list(self._options.source_partition),
            "key": (self.context and self.context.key) or state.key,
        }
        return SeenPart(state.model_copy(update=columns), self._options.window)

    def state_serializer(self) -> ModelSerializer[SeenState]:
        return ModelSerializer(SeenState)

    def check_schema(self, schema: pa.Schema) -> None:
        named = {"offset": self._options.offset, "source_partition": self._options.source_partition}
        require_columns(schema.names, named)
        check_types(self._options, schema)

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return self  # no part of it is in a target

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE


def check_types(options: ExactlyOnceOptions, schema: pa.Schema) -> None:
    """Reject columns whose values are not offsets, or do not identify a source partition.

    Raises `ConfigurationError` with the column and its type.
    """
    kind = schema.field(options.offset).type
    if not pa.types.is_signed_integer(kind):
        raise ConfigurationError(
            f"the column {options.offset!r} has the type {spark_type(kind)}, and offsets must be signed integers of"
            " at most 64 bits",
            do="cast it to bigint, or set another column as offset",
        )
    for name in options.source_partition:
        kind = schema.field(name).type
        if not any(names_partitions(kind) for names_partitions in _NAME_PARTITIONS):
            raise ConfigurationError(
                f"the column {name!r} has the type {spark_type(kind)}, whose values cannot identify a source partition",
                why="values must be comparable for equality, unlike floating-point numbers (NaN) and nested values",
                do="cast it to a string or an integer, or set another column as source_partition",
            )


_NAME_PARTITIONS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


class SeenPart(StatefulSinkPartition[Any, SeenState]):
    """The offsets that one part has seen."""

    def __init__(self, state: SeenState, window: int) -> None:
        """Continue from a state, which then belongs to this part."""
        self._state = state
        self._window = window

    def of(self, partition: str) -> SeenOffsets:
        """Return the seen offsets of a source partition."""
        return self._state.partitions.setdefault(partition, SeenOffsets())

    def write_batch(self, values: list[Any]) -> None:
        """No operation: the owner records the written rows."""

    def snapshot(self) -> SeenState:
        """Return all seen offsets, in bounded memory.

        No range is discarded within an epoch: its rows may be in any order.
        """
        for offsets in self._state.partitions.values():
            offsets.forget(self._window)
        return self._state


class ExactlyOncePartition(CompositePartition):
    """Passes on the rows that were not seen."""

    def __init__(
        self, openings: Mapping[str, Opening], options: ExactlyOnceOptions, context: WriterInitContext
    ) -> None:
        """Open the target and the seen offsets."""
        self._options = options
        self._context = context
        self._take: Callable[[Sequence[DeadLetter]], None] | None = None
        super().__init__(openings)

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Pass on rows below the window, and rows that the target rejects."""
        self._take = take
        target = self.children[TARGET].opened
        if SupportsDeadLetters in target.capabilities:
            target.partition.dead_letters_to(take)

    def write_batch(self, values: list[Any]) -> None:
        """Write values, which must be rows."""
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows that were not seen, in order.

        Without a dead-letter sink, raises `ValueRefusedError` if a row has no offset or source partition, or is below
        the window. Raises `ConfigurationError` if a column has an unsupported type, which could not be checked before.
        """
        batch = self._with_source(batch)
        if not batch.num_rows:
            return
        check_types(self._options, batch.schema)
        seen: SeenPart = self.children[SEEN].partition
        new, below, added = [], [], []
        for name, offsets, positions in self._by_source(batch):
            known = seen.of(name)
            split = split_by_seen(offsets, positions, known)
            new.append(split.new)
            below.append(split.below)
            added.append((known, split.runs))
            if len(split.below):
                self._check_below(name, known, offsets)
        kept = _rows(batch, new)
        if kept.num_rows:
            self.children[TARGET].write(kept)
        for known, runs in added:
            known.add(runs)
        late = _rows(batch, below)
        negative = pc.less(self._column(late, self._options.offset), 0)
        self._hand_over(late.filter(negative), _NEGATIVE)
        self._hand_over(late.filter(pc.invert(negative)), "below the window: the row may or may not have been written")
        dropped = batch.num_rows - kept.num_rows - late.num_rows
        if dropped:
            self._context.metrics.add("duplicates", dropped)

    def _by_source(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array, pa.Array | None]]:
        """The offsets of each source partition, and the positions of its rows; `None` for all rows."""
        columns = [self._column(batch, name) for name in self._options.source_partition]
        offsets = self._column(batch, self._options.offset).cast(pa.int64())
        table = pa.table({str(index): column for index, column in enumerate(columns)})
        sources = table.group_by(table.column_names).aggregate([]).to_pylist()
        for source in sources:
            values = [source[str(index)] for index in range(len(columns))]
            name = str(values[0]) if len(values) == 1 else json.dumps(values, ensure_ascii=False, default=str)
            if len(sources) == 1:
                yield name, offsets, None
                continue
            mask = pc.equal(columns[0], pa.scalar(values[0], columns[0].type))
            for column, value in zip(columns[1:], values[1:], strict=True):
                mask = pc.and_(mask, pc.equal(column, pa.scalar(value, column.type)))
            positions = pc.indices_nonzero(mask).cast(pa.int64())
            yield name, offsets.take(positions), positions

    def _with_source(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with a source position; the others are rejected."""
        for name in (self._options.offset, *self._options.source_partition):
            column = self._column(batch, name)
            if not column.null_count:
                continue
            if self._take is None:
                raise ValueRefusedError(
                    f"a row's {name!r} is NULL",
                    step=self._context.step_id,
                    epoch=self._context.epoch,
                    why="it identifies the source position of the row",
                    do="remove such rows, or set dead_letter= to a sink for them",
                )
            self._hand_over(
                batch.filter(column.is_null()), f"its {name!r} is NULL, which identifies its source position"
            )
            batch = batch.filter(column.is_valid())
        return batch

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name not in batch.schema.names:
            raise ValueRefusedError(f"a row has no column {name!r}", do="pass rows to the sink, and do not set value=")
        return batch.column(name)

    def _check_below(self, name: str, known: SeenOffsets, offsets: pa.Array) -> None:
        if self._take is not None:
            return
        context, least = self._context, pc.min(offsets).as_py()
        of, at = (f" of source partition {name}", f" {least}") if self._options.log_rows != "none" else ("", "")
        if least < 0:
            raise ValueRefusedError(
                f"a row{of} has the offset{at}",
                step=context.step_id,
                epoch=context.epoch,
                why=_NEGATIVE,
                do="correct the column, or set dead_letter= to a sink for such rows",
            )
        raise ValueRefusedError(
            f"a row{of} has the offset{at}, and the offsets seen up to {known.floor} are no longer stored",
            step=context.step_id,
            epoch=context.epoch,
            why=f"it is more than {self._options.window} offsets late, or the source was rewound",
            do="set dead_letter= to a sink for such rows, or use a larger window from the start",
        )

    def _hand_over(self, rows: pa.RecordBatch, reason: str) -> None:
        if self._take is None or not rows.num_rows:
            return
        context = self._context
        log = RowLog(self._options.log_rows, (*self._options.source_partition, self._options.offset))
        place = (context.step_id, context.epoch, context.part)
        self._take(
            [
                DeadLetter(text, reason, *place, masked=partial(log.described, "a row", text, reason))
                for text in row_texts(rows)
            ]
        )
        context.metrics.add("dead_letters", rows.num_rows)


_NEGATIVE = "offsets are integers from 0"


def _rows(batch: pa.RecordBatch, positions: Sequence[pa.Array]) -> pa.RecordBatch:
    """The rows at these positions, in order."""
    wanted = pa.concat_arrays(positions)
    if len(wanted) == batch.num_rows:
        return batch
    return batch.take(wanted.take(pc.sort_indices(wanted)))
