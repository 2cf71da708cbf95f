"""`DeadLetteringSink`: a sink, and a second sink for the records that it rejects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    SaveMode,
    SupportsCountCheck,
    SupportsDeadLetterSink,
    SupportsPreWriteTopology,
    SupportsTarget,
    shown_name,
)
from outfall.capability_checks import resolve
from outfall.dead_letter import DEAD_LETTER_SCHEMA, DeadLetter, dead_letter_batch
from outfall.delegating_sink import DelegatingSink
from outfall.errors import CapabilityError, ConfigurationError, ValueRefusedError
from outfall.options import names_arguments
from outfall.row_logging import RowLog
from outfall.source_options import build_children
from outfall.wrappers.composite import Composite
from outfall.wrappers.composite_committer import ChildValue
from outfall.wrappers.composite_partition import ChildPartition, CompositePartition, Opening

SINK = "sink"
DEAD_LETTERS = "dead_letters"


class DeadLetteringSink(Composite):
    """Writes through a sink, and the records that it rejects through a second one, in the same epoch.

    The states, committables and counters of both are in one record. An exactly-once dead-letter sink has each dead
    letter exactly once. If dead letters cannot be written, the query fails.

    Args:
        sink: a sink whose partitions report rejected records (`SupportsDeadLetterSink`).
        dead_letter: gets rows with the columns of `outfall.dead_letter.DEAD_LETTER_SCHEMA`. Each task opens it at the
            first rejected record. It has no parts, or as many as `sink`.
        max_dead_letters: maximum number of rejected records per epoch, over all tasks. One more fails the query, so
            that a wrong schema does not divert a whole epoch unnoticed. Default: the value of `sink`, which is 1000
            unless its options have another number.

    Raises:
        ConfigurationError: both are the same sink, or `max_dead_letters` is less than 1.
        CapabilityError: a sink cannot be used, alone or with the other, or does not report rejected records.
    """

    kind_name = "dead-lettering"

    @names_arguments
    def __init__(self, sink: Any, dead_letter: Any, *, max_dead_letters: int | None = None) -> None:
        if max_dead_letters is not None and max_dead_letters < 1:
            raise ConfigurationError(
                f"max_dead_letters: must be at least 1, not {max_dead_letters}",
                do="set a number, or omit dead_letter so that the first rejected record fails the query",
            )
        if sink is dead_letter:
            raise ConfigurationError("a sink cannot store its own dead letters", do="pass another sink as dead_letter")
        rows, dead_letters = resolve(sink), resolve(dead_letter)
        if SupportsPreWriteTopology in dead_letters.capabilities:
            raise CapabilityError(
                f"{shown_name(dead_letter)} changes the DataFrame before it is written",
                why="dead letters occur while the rows are written",
                do="pass a sink as dead_letter that does not change the DataFrame",
            )
        if dead_letters.fixed and not rows.fixed:
            raise CapabilityError(
                f"{shown_name(dead_letter)} with parts cannot store the dead letters of a sink without parts",
                why="each part is written by one task, and any task may have rejected records",
                do="pass a sink without parts as dead_letter, for example FileSink(path)",
            )
        if dead_letters.needs_same_rows():
            raise CapabilityError(
                f"{shown_name(dead_letter)} with these options needs the same rows when an epoch is run again",
                why="a record that is rejected again becomes another dead letter, with another time",
                do="pass a sink as dead_letter whose guarantee does not depend on the rows of an epoch",
            )
        if SupportsDeadLetterSink not in rows.capabilities:
            raise CapabilityError(
                f"{shown_name(sink)} does not report rejected records to another sink",
                do="omit dead_letter, or pass it to an inner sink that reports them; PostgresSink stores such rows"
                " in its dead_letter_table; your own sink needs SupportsDeadLetterSink, and its partition"
                " dead_letters_to(take)",
            )
        super().__init__({SINK: sink, DEAD_LETTERS: dead_letter})
        self._most: int = sink.max_dead_letters() if max_dead_letters is None else max_dead_letters

    def capabilities(self) -> Collection[type]:
        return (*super().capabilities(), SupportsCountCheck)

    def check_counts(self, counts: Mapping[str, int], examples: Mapping[str, str]) -> None:
        super().check_counts(counts, examples)
        found = counts.get(_COUNTER, 0)
        if found > self._most:
            raise _too_many(self._most, f"all tasks together have {found}; {examples.get(_COUNTER, '')}")

    def save_mode_of(self, name: str, mode: SaveMode | None) -> SaveMode | None:
        # The dead letters of former runs remain.
        return "append" if name == DEAD_LETTERS and mode == "overwrite" else mode

    def output_modes(self) -> Collection[str]:
        return self.resolved[SINK].output_modes()

    def keeps_newer_rows(self) -> bool:
        # Dead letters are as new as their epoch.
        return not self.resolved[SINK].may_replace_newer_rows()

    def row_schema(self) -> pa.Schema | None:
        rows = self.resolved[SINK]
        return rows.sink.row_schema() if SupportsTarget in rows.capabilities else None

    def schema_for(self, name: str, schema: pa.Schema) -> pa.Schema:
        return DEAD_LETTER_SCHEMA if name == DEAD_LETTERS else schema

    def open(self, openings: Mapping[str, Opening]) -> DeadLetteringPartition:
        return DeadLetteringPartition(openings, self._most)


class WithDeadLetters(DelegatingSink):
    """Base of sinks whose constructor takes `dead_letter`. To the engine it is `sink`, and the other sink if given.

    Args:
        sink: writes the rows, and reports rejected records (`SupportsDeadLetterSink`).
        dead_letter: as in `DeadLetteringSink`. Without it a rejected record fails the query.

    Raises:
        CapabilityError: `dead_letter` cannot take the records that `sink` rejects.
    """

    def __init__(self, sink: Any, dead_letter: Any = None) -> None:
        super().__init__(sink if dead_letter is None else DeadLetteringSink(sink, dead_letter))
        self._name = repr(sink)

    def __repr__(self) -> str:
        return self._name


class DeadLetteringPartition(CompositePartition):
    """Opens the second partition at the first rejected record."""

    _unflushed = False
    """Whether there are dead letters that were not flushed."""
    _end_of_input = True

    def __init__(self, openings: Mapping[str, Opening], most: int) -> None:
        """Open the first partition. `most` is the maximum number of rejected records of the epoch."""
        self._most = most
        self._refused = 0
        super().__init__(openings)

    def open_children(self) -> None:
        """Open the partition for the rows; the other one only if it has states, which would otherwise be lost."""
        self.open_child(SINK).partition.dead_letters_to(self.take)
        if self._openings[DEAD_LETTERS].resumes:
            self.open_child(DEAD_LETTERS)

    def written_children(self) -> Sequence[ChildPartition]:
        return (self.children[SINK],)

    def take(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Write dead letters. Called by the first partition, in the task's thread.

        Raises `ValueRefusedError` if there are more than the epoch may have.
        """
        if not dead_letters:
            return
        metrics = self._openings[DEAD_LETTERS].context.metrics
        metrics.example(_ROWS, _summary(dead_letters[0]))
        self._refused += len(dead_letters)
        if self._refused > self._most:
            raise _too_many(self._most, _summary(dead_letters[-1]))
        child = self.children.get(DEAD_LETTERS) or self.open_child(DEAD_LETTERS)
        self._unflushed = True
        child.write(dead_letter_batch(dead_letters))

    def flush(self, end_of_input: bool) -> None:
        """Flush the rows first, because most rejections occur then."""
        self.children[SINK].flush(end_of_input)
        self._end_of_input = end_of_input
        self._flush_dead_letters()

    def prepare_commit(self) -> Sequence[ChildValue]:
        """Prepare the rows first: some destinations check them only then."""
        prepared = self.children[SINK].prepare_commit()
        if self._unflushed:
            self._flush_dead_letters()
        if DEAD_LETTERS in self.children:
            prepared += self.children[DEAD_LETTERS].prepare_commit()
        return prepared

    def _flush_dead_letters(self) -> None:
        self._unflushed = False
        if DEAD_LETTERS in self.children:
            self.children[DEAD_LETTERS].flush(self._end_of_input)


_ROWS = "rows"
_COUNTER = f"{DEAD_LETTERS}.{_ROWS}"
"""The counter of the rows in the dead-letter sink."""


def _too_many(most: int, why: str) -> ValueRefusedError:
    return ValueRefusedError(
        f"more than {most} records of this epoch were rejected",
        why=why,
        do="correct the rows or the destination; or raise max_dead_letters, if so many dead letters are intended",
    )


def _summary(dead_letter: DeadLetter) -> str:
    masked = dead_letter.masked or partial(RowLog("none").described, "a record", dead_letter.row, dead_letter.reason)
    code = f" ({dead_letter.code})" if dead_letter.code else ""
    return f"one of them is {masked()}{code}"


def dead_letters_from_options(sink: Any, options: Mapping[str, str]) -> DeadLetteringSink:
    """Wrap a sink with a dead-letter sink from Spark options (`dead_letter.sink`, …; also spelled `deadLetter`).

    Raises `ConfigurationError` with the option that is missing, unknown or wrong, `CapabilityError` if the sink does
    not report rejected records, or the two cannot be combined, and `ImportError` if the extra of the dead-letter sink
    is not installed.
    """
    name = "dead_letter"
    given = {f"{name}.{key.partition('.')[2]}": value for key, value in options.items() if "." in key}
    if not given:
        raise ConfigurationError(
            f"{name}: takes no value of its own", do=f'set "{name}.sink", and its options with the same prefix'
        )
    return DeadLetteringSink(sink, build_children(given)[name])
