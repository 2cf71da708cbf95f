"""`FileSink`: files on a disk, each row in them once."""

from __future__ import annotations

import copy
import os
from typing import Any, Literal, Self, Unpack

import pyarrow as pa

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    SupportsSchemaCheck,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterInitContext,
)
from outfall.encode import FormatArguments, check_schema, suffix
from outfall.errors import ConfigurationError, TargetAheadError
from outfall.file.disk import explained, make_directories, sync_directory
from outfall.file.existing import check_existing, check_usable, delete_existing
from outfall.file.layout import Layout
from outfall.file.locked import Patience, held
from outfall.file.marker import check_marker, create_marker
from outfall.file.options import FileOptions
from outfall.options import make_options
from outfall.sinks import Sink
from outfall.steps import reached


class FileSink(Sink[Any], SupportsWriterContext, SupportsTarget[Any], SupportsSchemaCheck, DeclaresGuarantee):
    """Writes rows into the files of a directory, as JSON lines, CSV, Parquet or text.

    Item type: rows (dicts or Arrow batches); for `format="text"` one string column.

    What must exist: nothing; the directory is created. All hosts that write must see it under this path.

    Unit of parallelism: without `parts`, each Spark task writes a file of its own, hidden until the commit of its epoch
    publishes it. With `parts=N`, N files grow by appending, each written by one task at a time; rows go to them by key.

    Guarantee: exactly once, after any number of restarts and while old attempts still run. Readers of whole files never
    see a row that is taken back. Readers of growing files may, until an epoch is completed.

    `FileSink(...)` makes a `WholeFileSink` or a `GrowingFileSink`, as `pathlib.Path` makes one of its subclasses.

    Args:
        path: the directory; a relative one is made absolute here and now.
        parts: how many growing files; `None` for whole files.
        on_existing: on first contact with somebody's data `"error"`, `"resume"` (keep it) or `"overwrite"`.
        on_rewind: when the directory is ahead of the recovery data `"error"` or `"truncate"`.
        format_options: `format`, `compression` and the options of formats, as `FormatOptions` describes them.

    Raises:
        ConfigurationError: naming every option that is wrong.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if cls is FileSink:
            from outfall.file.growing import GrowingFileSink
            from outfall.file.whole import WholeFileSink

            chosen: Any = WholeFileSink if options.get("parts") is None else GrowingFileSink
            return object.__new__(chosen)  # type: ignore[no-any-return]
        return object.__new__(cls)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        parts: int | None = None,
        on_existing: Literal["error", "resume", "overwrite"] = "error",
        on_rewind: Literal["error", "truncate"] = "error",
        **format_options: Unpack[FormatArguments],
    ) -> None:
        place = {"path": path, "parts": parts, "on_existing": on_existing, "on_rewind": on_rewind}
        self.options = make_options(FileOptions, place | format_options)
        self.context: WriterInitContext | None = None
        self.patience = Patience()

    @property
    def layout(self) -> Layout:
        """The names below the directory."""
        return Layout(self.options.path)

    @property
    def innermost(self) -> str:
        """The directory to make before anything is written."""
        return self.layout.sidecar

    @property
    def suffix(self) -> str:
        """The end of the files' names."""
        return suffix(self.options)

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def check_schema(self, schema: pa.Schema) -> None:
        check_schema(self.options, schema)

    def target(self) -> str:
        return f"file:{self.options.path}"

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open_target(self, context: TargetContext[Any]) -> None:
        with explained("opening", self.options.path):
            first = context.completed is None
            if first or not os.path.isdir(self.innermost):
                make_directories(self.innermost)
            if not check_marker(self.layout, context.incarnation, context.completed):
                self._open_first(context)
            elif first:
                # Whoever created the marker may have died before its name was durable.
                sync_directory(self.layout.sidecar)
            self._take_back(context)

    def _open_first(self, context: TargetContext[Any]) -> None:
        """Take possession under a lock, so that neither a second query nor an older driver that wakes late does too."""
        layout = self.layout
        reached("file: opening")
        with held(layout.opening, self.patience):
            if check_marker(layout, context.incarnation, context.completed):
                return
            check_existing(layout, self.options, context.step_id, context.incarnation)
            if self.options.on_existing == "overwrite":
                delete_existing(layout, context)
            self._claim(context)
            create_marker(layout, context.incarnation, context.step_id)

    def _claim(self, context: TargetContext[Any]) -> None:
        """Take over what carries its own record of a writer."""

    def _take_back(self, context: TargetContext[Any]) -> None:
        """Take back what `check_target` found to be later than the recovery data, under `on_rewind="truncate"`.

        Only what was seen then: since BEGIN was appended right after the entries that were read before, whatever looks
        different now is a newer driver's, and this one woke late.
        """

    def _check_place(self, context: TargetContext[Any]) -> bool:
        """Return whether the directory is ours already; refuse one that is not what the recovery data says."""
        check_usable(self.layout)
        ours = check_marker(self.layout, context.incarnation, context.completed)
        if not ours:
            check_existing(self.layout, self.options, context.step_id, context.incarnation)
        return ours

    def _writer(self) -> WriterInitContext:
        if self.context is None:
            raise ConfigurationError(
                f"{type(self).__name__} was not told who writes", do="run it through outfall, which calls bind() first"
            )
        return self.context


def ahead(path: str, found: str, context: TargetContext[Any], part: str | None = None) -> TargetAheadError:
    """Make the error of a target that is later than the recovery data."""
    return TargetAheadError(
        f"{path} is ahead of the recovery data: {found}",
        step=context.step_id,
        epoch=context.epoch,
        part=part,
        why=f"the recovery data ends at generation {context.last_generation}, completed epoch {context.completed}: it"
        " was restored from an older copy, or its newest entries are lost",
        do='restore the newest recovery data, or set on_rewind="truncate" to take the later rows back',
    )
