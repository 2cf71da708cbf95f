"""What a sink says of its target and does to it: names, checks, opening, sealing, clean-up.

Public as part of `outfall.capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

from outfall.committer import SupportsCommitter
from outfall.contexts import CleanUpContext, PartSeal, RowIdentity, SealContext, TargetCheck, TargetContext
from outfall.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from outfall.target_record import TargetRecord

S = TypeVar("S")

SaveMode = Literal["error", "append", "overwrite"]
"""How a batch job treats existing data in the target."""

OUTPUT_MODES = ("append", "update", "complete")
"""Spark's output modes of a streaming query."""


def no_save_mode(sink: object, mode: str) -> ConfigurationError:
    """Return the error for a save mode of a sink that supports only "append"."""
    return ConfigurationError(
        f"{shown_name(sink)} cannot be written with mode={mode!r}",
        why='the only save mode that the sink supports is "append"',
        do='pass mode="append", or write to a new target',
    )


def shown_name(sink: object) -> str:
    """Return the class name of a sink for messages: `shown_as` if set, which names the public class around it."""
    return getattr(type(sink), "shown_as", None) or type(sink).__name__


def class_name(sink: object) -> str:
    """Return the qualified class name of a sink."""
    return f"{type(sink).__module__}.{type(sink).__qualname__}"


class DeclaresKind:
    """On a sink: names its kind. Every `SupportsTarget` sink does, and every sink that delegates to another one."""

    def kind(self) -> str:
        """Return a stable name of the kind of sink, stored in the log. Defaults to the class name."""
        return class_name(self)


class SupportsTarget(DeclaresKind, ABC, Generic[S]):
    """On a sink: names, checks, opens and cleans up its target. Only `target` is required, the rest has defaults.

    The order in an epoch: the columns are checked, the target is compared with the recovery data, BEGIN is written, the
    target is opened. After the epoch is completed, the data of failed attempts is removed.
    """

    reselects_base_states: bool = False
    """Whether `check_target` may replace a state that it returned earlier, as long as no epoch is recorded. For a part
    that has a state, it then returns one only if no data can have been written since."""

    @abstractmethod
    def target(self) -> str:
        """Return a stable name of the target, without secrets. If it changes between restarts, the query fails."""

    def place(self) -> str:
        """Return the current location of the target: unique per target, and the same for all names of one target.

        Called on the driver before each epoch if several sinks are written in one step. No two sinks of one kind (up
        to the first `/` of `kind`) may write to one location. A location that ends with `/` contains every location
        that begins with it, and those are rejected too. The value is never recorded. It may therefore contain a
        host name, which `target` omits if the name may change. Defaults to `target`.
        """
        return self.target()

    def row_identity(self) -> RowIdentity | None:
        """Return what identifies a row in the target, without secrets, if rows are written by key.

        Called on the driver before each epoch, and contacts nothing. Stored in the log at each BEGIN. If it changes
        once an epoch is recorded, the query fails, since rows of one key would no longer meet in the target. An order
        or a marker of deletes may be added, and the marker may get another name.

        Returns:
            The identity, or `None` if each row is added. Defaults to `None`.
        """
        return None

    def applies_key_at_commit(self) -> bool:
        """Return whether a commit applies the row identity of the running query to what earlier tasks have staged.

        Called on the driver before each epoch. If it does, the identity may also change while an epoch is recorded,
        until its commit begins. Defaults to `False`.
        """
        return False

    def owns_target(self) -> bool:
        """Return whether the sink takes over the data in its target, so that no other sink may write there.

        A sink that only sends requests reads nothing, and other sinks may send to the same location. The default is
        false for a sink that neither checks its target, nor commits, seals or cleans up there.
        """
        kind = type(self)
        acts = isinstance(self, SupportsCommitter | SupportsSeal) or kind.clean_up is not SupportsTarget.clean_up
        return acts or kind.check_target is not SupportsTarget.check_target

    def recovery_location(self) -> str | None:
        """Return a recovery location in the target's own database, for an error about a location that cannot be used.

        It contains no secret, only references such as `password=env:NAME`, and belongs to no other query.

        Returns:
            A URL, or `None` if the target is not such a database. Defaults to `None`.
        """
        return None

    def check_connection(self) -> Sequence[str]:
        """Connect to the destination and check the permissions, for `outfall doctor`. Leaves nothing behind.

        Called in any process, without a query. Sends no row.

        Returns:
            One short sentence per successful check, and per property that cannot be checked. Empty by default.

        Raises:
            OutfallError: A check failed. States why, and what to do.
        """
        return ()

    def row_schema(self) -> pa.Schema | None:
        """Return the columns that a row may have, for `outfall replay`, which parses rows from text.

        Called in any process, without a query. A column takes values of its type. A string column may also take the
        text form of another type, if the target parses it.

        Returns:
            The columns, or `None` if the target does not define them. Defaults to `None`.

        Raises:
            OutfallError: The target cannot be read.
        """
        return None

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject columns that cannot be written. Called on the driver before each epoch, before any data moves.

        Args:
            schema: The Arrow schema of the batches.

        Raises:
            ConfigurationError: Names each rejected column, its type, and what to do.
        """

    def check_target(self, context: TargetContext[S]) -> Mapping[str, S] | TargetCheck[S]:
        """Reject a target that contradicts the recovery data. Changes nothing.

        Called on the driver before the BEGIN of each epoch, and before the rows of a completed batch are skipped. A
        sink remembers nothing between this call and `open_target`: it returns a `TargetCheck` instead.

        Returns:
            The start state of parts that have none yet. A sink that writes in place returns a state for each such
            part, even an empty one, because `seal` is called only for parts with a state. Until an epoch is recorded, a
            sink with `reselects_base_states` may return other states than before.

        Raises:
            TargetNotEmptyError: On the first run, the target contains data of another writer.
            TargetLostError: The target contains less than was recorded.
            TargetAheadError: The target contains later epochs than were recorded.
        """
        return {}

    def find_moved(self, context: TargetContext[S], recorded: str) -> TargetRecord | None:
        """Find the step's record in a target that has another name than recorded, for `outfall move`. Changes nothing.

        Called on the driver, before recorded epochs of earlier runs are resolved. Implement it if `target` contains an
        address and the target keeps a record of the step.

        Args:
            context: The state of the recovery data. Its generation and token are those of the newest BEGIN, so that
                `outfall.target_record.check_opening` compares the record with it.
            recorded: What `target` returned for that BEGIN.

        Returns:
            The record. `None`, the default, means that the target keeps none: the user then decides.

        Raises:
            ConfigurationError: More than the address has changed.
            TargetLostError: The target has no record of the step, or an older one.
            FencedError: Another driver has opened the target.
        """
        return None

    def move_target(self, context: TargetContext[S], recorded: str) -> None:
        """Rename what the target keeps under a name that contains the recorded address. Must be idempotent.

        Called after `find_moved` with the same arguments, before recorded epochs are resolved. Without effect by
        default.
        """

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        """Return a copy that treats existing data in the target according to a save mode of Spark.

        Called on the driver for a batch job, before it begins. The default accepts "append" and `None`.

        Args:
            mode: "error" rejects a target with data (`TargetNotEmptyError`), "append" keeps the data, "overwrite"
                replaces it. `None` applies the sink's options, or "error".

        Raises:
            ConfigurationError: The sink does not support the mode, or its options contradict it.
        """
        if mode in ("error", "overwrite"):
            raise no_save_mode(self, mode)
        return self

    def output_modes(self) -> Collection[str]:
        """Return the output modes of streaming queries that the sink accepts.

        In mode `update`, Spark sends a row again after each change. In mode `complete`, it sends all rows in every
        epoch.
        """
        return OUTPUT_MODES

    def open_target(self, context: TargetContext[S]) -> None:
        """Create directories, markers or tables for the tasks. Called after each BEGIN. Must be idempotent."""

    def clean_up(self, context: CleanUpContext) -> int:
        """Remove data of failed attempts: names with this incarnation and a generation below that of the context.

        Called on the driver after an epoch is completed, and before the epoch of a failed attempt is written again. At
        these times no record names data of an older generation, except the states, which the context reads. Data that
        a state names must remain. Never removes data of another writer, and never decides by age.

        Returns:
            The number of removed objects.
        """
        return 0

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str] | None:
        """Return what `clean_up` would remove with the same context, for `outfall gc` without `--yes`.

        Changes nothing. The result may be outdated by the time of `clean_up`.

        Returns:
            One readable name per object, without secrets. `None` if the sink cannot determine it, which is the default
            if the sink has a `clean_up`.
        """
        return () if type(self).clean_up is SupportsTarget.clean_up else None

    def withdraw(self, context: CleanUpContext) -> None:
        """Release a target that was opened and in which no epoch is completed, so that the next run finds it unchanged.

        Removes the marks of this incarnation. Called on the driver for a batch job without recovery data that failed
        before anything was recorded, after `open_target`, `seal` and `clean_up` with a new generation. By then all
        data of the job is removed, and its zombie tasks are fenced. Must be idempotent.
        """


class SupportsSeal(ABC, Generic[S]):
    """On a fixed sink that writes in place: closes each part before its state is recorded."""

    @abstractmethod
    def seal(self, context: SealContext, parts: Sequence[PartSeal[S]]) -> None:
        """Check the parts, and close them to every writer of this epoch or an older generation.

        Called on the driver after all tasks have returned. Under each part's lock, the last writer must be the recorded
        winner, and the content must end where the state says. A part without a task result is truncated to its state.

        Raises:
            SealError: Another attempt wrote last. The epoch runs again.
        """
