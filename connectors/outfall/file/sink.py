"""`FileSink`: files in a directory, with each row written exactly once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, Unpack

from outfall.delegating_sink import DelegatingSink
from outfall.existing import OnExistingFiles
from outfall.file.growing.sink import GrowingFiles
from outfall.file.options import FileOptions
from outfall.file.whole.by_spark import LocalFilesBySpark, RemoteFilesBySpark
from outfall.file.whole.sink import LocalWholeFiles, RemoteWholeFiles
from outfall.formats import FormatArguments
from outfall.options import arguments_for, make_options, names_arguments


class FileSink(DelegatingSink):
    """Writes rows into the files of a directory, as JSON lines, CSV, Parquet or text.

    Item type: rows (dicts or Arrow batches); for `format="text"` one string column.

    Requirements: directories are created, but the bucket of an object store must exist. All hosts that write must share
    the directory under this path.

    Parallelism: without `parts`, each Spark task writes its own files, which are hidden until their epoch is committed.
    With `parts=N`, rows are appended to N files by key, and one task at a time writes each file.

    Guarantee: exactly once, after any number of restarts and while stale tasks still run. Readers of whole files never
    see a row that is rolled back. Readers of growing files may see such rows until the epoch is completed.

    Args:
        path: the directory. A relative path becomes absolute on construction. Whole files also accept a URL, see
            `FileOptions`.
        parts: the number of growing files; `None` for whole files.
        on_existing: what to do with existing data on the first run: `"error"`, `"resume"` (keep it) or `"overwrite"`.
        on_rewind: what to do if the directory is ahead of the recovery log: `"error"` or `"truncate"`.
        roll_bytes: the size at which a file is closed: bytes, or a string such as `"128 MiB"`.
        roll_interval: the age at which a file is closed: timedelta, seconds, or a string such as `"1 hour"`.
        partition_by: columns whose values name directories such as `carrier=AA`, and are not stored in the files.
        directory_pattern: a time pattern that names directories, for example `"'dt='yyyy-MM-dd"`.
        directory_time: the column that the pattern formats; by default the time of writing, in UTC.
        max_open_files: the maximum number of file descriptors per task.
        writer: who encodes the rows of whole files: `"outfall"`, or `"spark"` for Spark's own writer.
        writer_options: the options of Spark's writer.
        formatting: `format`, `compression` and the options of formats, see `FormatOptions`.

    Raises:
        ConfigurationError: names every option that is wrong.
    """

    delegate: GrowingFiles | LocalWholeFiles | RemoteWholeFiles

    @names_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        parts: int | None = None,
        on_existing: OnExistingFiles = "error",
        on_rewind: Literal["error", "truncate"] = "error",
        roll_bytes: int | str | None = None,
        roll_interval: timedelta | float | str | None = None,
        partition_by: str | Sequence[str] = (),
        directory_pattern: str | None = None,
        directory_time: str | None = None,
        max_open_files: int = 256,
        writer: Literal["outfall", "spark"] = "outfall",
        writer_options: Mapping[str, Any] = MappingProxyType({}),
        **formatting: Unpack[FormatArguments],
    ) -> None:
        options = make_options(FileOptions, arguments_for(FileOptions, locals()) | formatting)
        location = options.remote
        if location is not None:
            remote = RemoteFilesBySpark if options.by_spark else RemoteWholeFiles
            super().__init__(remote(options, location))
        elif options.parts is None:
            super().__init__(LocalFilesBySpark(options) if options.by_spark else LocalWholeFiles(options))
        else:
            super().__init__(GrowingFiles(options))

    @property
    def options(self) -> FileOptions:
        """The options, including defaults."""
        return self.delegate.options
