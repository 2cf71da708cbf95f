"""`FileSink`: files in a directory, each row in them once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, Unpack

from outfall.delegating_sink import DelegatingSink
from outfall.file.growing.sink import GrowingFiles
from outfall.file.options import FileOptions
from outfall.file.whole.sink import LocalWholeFiles, RemoteWholeFiles
from outfall.formats import FormatArguments
from outfall.options import make_options, names_arguments


class FileSink(DelegatingSink):
    """Writes rows into the files of a directory, as JSON lines, CSV, Parquet or text.

    Item type: rows (dicts or Arrow batches); for `format="text"` one string column.

    What must exist: nothing but an object store's bucket; directories are created. All hosts that write must see the
    same place under this path.

    Unit of parallelism: without `parts`, each Spark task writes a file of its own, hidden until the commit of its epoch
    publishes it. With `parts=N`, N files grow by appending, each written by one task at a time; rows go to them by key.

    Guarantee: exactly once, after any number of restarts and while old attempts still run. Readers of whole files never
    see a row that is taken back. Readers of growing files may, until an epoch is completed.

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

    worker: GrowingFiles | LocalWholeFiles | RemoteWholeFiles

    @names_arguments
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
        options = make_options(FileOptions, place | format_options)
        location = options.remote
        if location is not None:
            super().__init__(RemoteWholeFiles(options, location))
        elif options.parts is None:
            super().__init__(LocalWholeFiles(options))
        else:
            super().__init__(GrowingFiles(options))

    @property
    def options(self) -> FileOptions:
        """What the sink was told, with the defaults."""
        return self.worker.options
