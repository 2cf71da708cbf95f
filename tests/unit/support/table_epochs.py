"""Epochs of a table in memory without the engine: staged by the real writer, committed by the real committer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import CommitRequest, CommittableMessage, CommitterInitContext, WriterInitContext
from outfall.tables.commit import TableCommitter
from outfall.tables.data_file import EpochFiles, TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.writer import TableWriter
from tests.unit.support.memory_table import MemoryLayout, MemoryTableSink, TableLink

INCARNATION = "0123456789abcdef"


def token_of(generation: int) -> str:
    return f"{generation:016x}"


def layout_of(link: TableLink) -> MemoryLayout:
    """What files must be like now."""
    assert link.store.state is not None
    return MemoryLayout(link, link.store.state)


def writer(
    link: TableLink, generation: int = 1, epoch: int = 0, *, attempt: int = 0, token: str | None = None,
    published: int | None = None, **options: Any,
) -> TableWriter:  # fmt: skip
    """Make the writer of one attempt."""
    context = WriterInitContext(
        "sink", INCARNATION, generation, epoch, None, attempt, token=token or token_of(generation)
    )
    given = TableOptions(**{"retry_deadline": 0.001, **options})
    return TableWriter(layout_of(link), context, given, published=published)


def attempted(link: TableLink, rows: Sequence[Mapping[str, Any]], *begin: int, **more: Any) -> TaskFiles:
    """Write rows as one attempt of a task; `begin` is generation and epoch."""
    part = writer(link, *begin, **more)
    part.write_batch(list(rows))
    (files,) = part.prepare_commit()
    part.close()
    return files


def staged(link: TableLink, rows: Sequence[Mapping[str, Any]], *begin: int, **more: Any) -> EpochFiles:
    """Write the rows of an epoch, and make its committable, as another process recorded it."""
    (message,) = EpochFiles.gather([CommittableMessage(attempted(link, rows, *begin, **more), 0, 0)], overwrite=False)
    return message.value.model_copy(update={"recorded_by": "another process"})


def committer(
    link: TableLink, generation: int = 1, epoch: int = 0, *, token: str | None = None,
    begun: Mapping[int, str] | None = None, **options: Any,
) -> TableCommitter:  # fmt: skip
    """Make the committer of an epoch that was staged under a generation."""
    mine = token or token_of(generation)
    context = CommitterInitContext(
        "sink", INCARNATION, generation, epoch, token=mine, begun={generation: mine} if begun is None else begun
    )
    return MemoryTableSink(link, **options)._committer(context)


def commit(link: TableLink, files: EpochFiles, *begin: int, **more: Any) -> str:
    """Commit an epoch, and return what was signalled."""
    request = CommitRequest(files)
    committer(link, *begin, **more).commit([request])
    return request.outcome.kind


def ids(link: TableLink) -> list[int]:
    """The rows that a reader finds, by their ids."""
    return sorted(row["id"] for row in link.store.rows())
