"""`DeadLetteringSink`: a sink, and another one for the records that it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    OUTPUT_MODES,
    SaveMode,
    SupportsCountCheck,
    SupportsDeadLetterSink,
    SupportsPreWriteTopology,
    SupportsTarget,
    shown_name,
)
from outfall.capability_checks import is_fixed, needs_same_rows, supports
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
    """Writes through a sink, and what that refuses through another one, in the same epoch.

    Both have their states, committables and counters in one record. A dead-letter sink that is exactly once has each
    record once, as the rows have theirs. When dead letters cannot be written the query stops.

    Args:
        sink: its partitions hand over what they refuse (`SupportsDeadLetterSink`).
        dead_letter: gets rows with the columns of `outfall.dead_letter.DEAD_LETTER_SCHEMA`. In each task it is opened
            when the first record is refused. It has no parts, or as many as `sink` has.
        max_dead_letters: how many records of an epoch, of all its tasks, may be refused; one more fails the query, so
            that a wrong schema does not divert an epoch in silence. Left out: what `sink` says, which is 1000 unless
            its options have another number.

    Raises:
        ConfigurationError: the two are one, or `max_dead_letters` is less than 1.
        CapabilityError: a sink cannot be used, alone or with the other, or does not hand over what it refuses.
    """

    kind_name = "dead-lettering"

    @names_arguments
    def __init__(self, sink: Any, dead_letter: Any, *, max_dead_letters: int | None = None) -> None:
        if max_dead_letters is not None and max_dead_letters < 1:
            raise ConfigurationError(
                f"max_dead_letters: must be at least 1, not {max_dead_letters}",
                do="give a number, or leave dead_letter out to have the first refused record stop the query",
            )
        if sink is dead_letter:
            raise ConfigurationError("a sink cannot take its own dead letters", do="give another sink as dead_letter")
        if supports(dead_letter, SupportsPreWriteTopology):
            raise CapabilityError(
                f"a {shown_name(dead_letter)} changes the DataFrame before it is written",
                why="dead letters come up while the rows are written",
                do="give a sink as dead_letter that takes rows as they come",
            )
        if is_fixed(dead_letter) and not is_fixed(sink):
            raise CapabilityError(
                f"a {shown_name(dead_letter)} with parts cannot take the dead letters of a sink without any",
                why="each part is written by one task, and any task may have records that are refused",
                do="give a sink without parts as dead_letter, for example FileSink(path)",
            )
        if needs_same_rows(dead_letter):
            raise CapabilityError(
                f"a {shown_name(dead_letter)} with these options needs the same rows when an epoch is run again",
                why="a record that is refused again is another dead letter, with another time",
                do="give a sink as dead_letter that is once whatever rows an epoch has",
            )
        if not supports(sink, SupportsDeadLetterSink):
            raise CapabilityError(
                f"a {shown_name(sink)} does not hand over what it refuses to another sink",
                do="leave dead_letter out, or give it to a sink within this one that does; PostgresSink keeps such rows"
                " in its dead_letter_table; a sink of your own needs SupportsDeadLetterSink, and its partition"
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
        # The dead letters of former runs stay.
        return "append" if name == DEAD_LETTERS and mode == "overwrite" else mode

    def output_modes(self) -> Collection[str]:
        sink = self.children()[SINK]
        return sink.output_modes() if supports(sink, SupportsTarget) else OUTPUT_MODES

    def row_schema(self) -> pa.Schema | None:
        sink = self.children()[SINK]
        return sink.row_schema() if supports(sink, SupportsTarget) else None

    def schema_for(self, name: str, schema: pa.Schema) -> pa.Schema:
        return DEAD_LETTER_SCHEMA if name == DEAD_LETTERS else schema

    def open(self, openings: Mapping[str, Opening]) -> DeadLetteringPartition:
        return DeadLetteringPartition(openings, self._most)


class WithDeadLetters(DelegatingSink):
    """Base of sinks whose constructor takes `dead_letter`: to the engine `sink`, and beside it the one that is given.

    Args:
        sink: does the work, and hands over what it refuses (`SupportsDeadLetterSink`).
        dead_letter: as for `DeadLetteringSink`. Without it a refused record stops the query.

    Raises:
        CapabilityError: `dead_letter` cannot take what `sink` refuses.
    """

    def __init__(self, sink: Any, dead_letter: Any = None) -> None:
        super().__init__(sink if dead_letter is None else DeadLetteringSink(sink, dead_letter))
        self._shown = repr(sink)

    def __repr__(self) -> str:
        return self._shown


class DeadLetteringPartition(CompositePartition):
    """Opens the second partition when the first one refuses something."""

    _unflushed = False
    """Whether there are dead letters that were not flushed."""
    _end_of_input = True

    def __init__(self, openings: Mapping[str, Opening], most: int) -> None:
        """Open the first partition.

        Args:
            openings: how the two are opened.
            most: how many records the epoch may have refused.
        """
        self._most = most
        self._refused = 0
        super().__init__(openings)

    def open_children(self) -> None:
        """Open the one for the rows; the other one if it has something to go on from, which would else be lost."""
        self.open_child(SINK).partition.dead_letters_to(self.take)
        if self._openings[DEAD_LETTERS].resumes:
            self.open_child(DEAD_LETTERS)

    def written_children(self) -> Sequence[ChildPartition]:
        return (self.children[SINK],)

    def take(self, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters. Called by the first partition, in the task's thread.

        Raises:
            ValueRefusedError: there are more than the epoch may have.
        """
        if not letters:
            return
        metrics = self._openings[DEAD_LETTERS].context.metrics
        metrics.example(_ROWS, _shown(letters[0]))
        self._refused += len(letters)
        if self._refused > self._most:
            raise _too_many(self._most, _shown(letters[-1]))
        child = self.children.get(DEAD_LETTERS) or self.open_child(DEAD_LETTERS)
        self._unflushed = True
        child.write_record_batch(dead_letter_batch(letters))

    def flush(self, end_of_input: bool) -> None:
        """Flush the rows first: that is when most are refused."""
        self.children[SINK].flush(end_of_input)
        self._end_of_input = end_of_input
        self._flush_dead_letters()

    def prepare_commit(self) -> Sequence[ChildValue]:
        """Prepare the rows first: some destinations look at them only then."""
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
"""What counts the rows that the dead-letter sink got."""


def _too_many(most: int, why: str) -> ValueRefusedError:
    return ValueRefusedError(
        f"more than {most} records of this epoch are refused",
        why=why,
        do="correct the rows or the destination; or raise max_dead_letters, if so many are meant to be set aside",
    )


def _shown(letter: DeadLetter) -> str:
    shown = letter.shown or partial(RowLog("none").described, "a record", letter.row, letter.reason)
    code = f" ({letter.code})" if letter.code else ""
    return f"one of them is {shown()}{code}"


def dead_letters_from_options(sink: Any, options: Mapping[str, str]) -> DeadLetteringSink:
    """Give a sink another one for what it refuses, of Spark options (`dead_letter.sink`, …; also spelled `deadLetter`).

    Raises:
        ConfigurationError: naming the option that is missing, unknown or wrong.
        CapabilityError: the sink does not hand over what it refuses, or the two do not go together.
        ImportError: the extra of the other sink is not installed.
    """
    name = "dead_letter"
    given = {f"{name}.{key.partition('.')[2]}": value for key, value in options.items() if "." in key}
    if not given:
        raise ConfigurationError(f"{name}: has no value of its own", do=f'write "{name}.sink", and its options alike')
    return DeadLetteringSink(sink, build_children(given)[name])
