"""`FileSink`: files on a disk, each row in them once."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import PurePath
from typing import Any, Literal, Self, Unpack

import pyarrow as pa

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.file.options import FileOptions, is_remote
from outfall.formats import FormatArguments, check_schema, suffix
from outfall.options import make_options, options_in_save_mode
from outfall.sinks import Sink
from outfall.target_record import TargetRecord, is_ahead


class FileSink(Sink[Any], SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """Writes rows into the files of a directory, as JSON lines, CSV, Parquet or text.

    Item type: rows (dicts or Arrow batches); for `format="text"` one string column.

    What must exist: nothing but an object store's bucket; directories are created. All hosts that write must see the
    same place under this path.

    Unit of parallelism: without `parts`, each Spark task writes a file of its own, hidden until the commit of its epoch
    publishes it. With `parts=N`, N files grow by appending, each written by one task at a time; rows go to them by key.

    Guarantee: exactly once, after any number of restarts and while old attempts still run. Readers of whole files never
    see a row that is taken back. Readers of growing files may, until an epoch is completed.

    `FileSink(...)` makes one of its subclasses, as `pathlib.Path` does.

    Args:
        path: the directory; a relative one is made absolute here and now. Whole files also by URL: see `FileOptions`.
        parts: how many growing files; `None` for whole files.
        on_existing: on first contact with somebody's data `"error"`, `"resume"` (keep it) or `"overwrite"`.
        on_rewind: when the directory is ahead of the recovery data `"error"` or `"truncate"`.
        roll_bytes: close a file of this size and go on in the next: bytes, or text such as `"128 MiB"`.
        roll_interval: close a file of this age when the next rows come: timedelta, seconds, or text as `"1 hour"`.
        partition_by: columns whose values name directories, as `carrier=AA`, and are not stored in the files.
        bucket_pattern: a pattern of time that names directories, as `"'dt='yyyy-MM-dd"`.
        bucket_time: the column that the pattern formats; without it the time of writing, in UTC.
        max_open_files: how many file descriptors a task uses at most, however many directories it writes into.
        format_options: `format`, `compression` and the options of formats, as `FormatOptions` describes them.

    Raises:
        ConfigurationError: naming every option that is wrong.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if cls is not FileSink:
            return object.__new__(cls)
        from outfall.file.growing import GrowingFileSink
        from outfall.file.local_whole import LocalWholeFileSink
        from outfall.file.remote_whole import RemoteWholeFileSink

        path = args[0] if args else options.get("path", "")
        chosen: Any = GrowingFileSink
        if isinstance(path, str) and is_remote(path):
            chosen = RemoteWholeFileSink
        elif options.get("parts") is None:
            chosen = LocalWholeFileSink
        return object.__new__(chosen)  # type: ignore[no-any-return]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        parts: int | None = None,
        on_existing: Literal["error", "resume", "overwrite"] = "error",
        on_rewind: Literal["error", "truncate"] = "error",
        roll_bytes: int | str | None = None,
        roll_interval: timedelta | float | str | None = None,
        partition_by: str | Sequence[str] = (),
        bucket_pattern: str | None = None,
        bucket_time: str | None = None,
        max_open_files: int = 256,
        **format_options: Unpack[FormatArguments],
    ) -> None:
        place = {
            "path": path,
            "parts": parts,
            "on_existing": on_existing,
            "on_rewind": on_rewind,
            "roll_bytes": roll_bytes,
            "roll_interval": roll_interval,
            "partition_by": partition_by,
            "bucket_pattern": bucket_pattern,
            "bucket_time": bucket_time,
            "max_open_files": max_open_files,
        }
        self.options = make_options(FileOptions, place | format_options)
        self.context: WriterInitContext | None = None

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
        return self.options.path if self.options.remote else f"file:{self.options.path}"

    def place(self) -> str:
        return f"{self.options.path}/" if self.options.remote else f"file:{identity(self.options.path)}"

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed.options = options_in_save_mode(self.options, mode)
        return changed

    def output_modes(self) -> Collection[str]:
        return ("append",)

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def _writer(self) -> WriterInitContext:
        if self.context is None:
            raise ConfigurationError(
                f"{type(self).__name__} was not told who writes", do="run it through outfall, which calls bind() first"
            )
        return self.context


def identity(path: str) -> str:
    """Name a directory by what it is, not by how it is spelled: each level by its inode, as far as there is one."""
    real = PurePath(os.path.realpath(path))
    levels = []
    for level in (*reversed(real.parents), real):
        try:
            status = os.stat(level)
        except OSError:
            levels.append(level.name)
        else:
            levels.append(f"{status.st_dev}:{status.st_ino}")
    return "".join(f"{level}/" for level in levels)


AHEAD = (
    "restore the newest recovery data; or, if no query runs on another copy of it, set"
    ' on_rewind="truncate": the later rows are taken back, and written again as the source brings them'
)
"""What to do about a target that is later than the recovery data."""


def may_take_back(options: FileOptions, found: TargetRecord, context: TargetContext[Any]) -> bool:
    """Tell whether a target is later than the recovery data, and `on_rewind` says what to do about it.

    So is one that a BEGIN opened which the recovery data does not have, be its number as low as it may: each try to
    take the later rows back is a BEGIN, too, and they may be as many by now as there were.
    """
    unknown = found.generation >= min(context.begun, default=0) and found.token != context.begun.get(found.generation)
    return options.on_rewind == "truncate" and (is_ahead(found, context) or (found.token is not None and unknown))
