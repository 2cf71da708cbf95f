"""`S3Sink`: objects in a bucket, with each row written exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Unpack

from outfall.capabilities import (
    BufferedRows,
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsPostCommitTopology,
    SupportsWriterState,
    TargetCheck,
    TargetContext,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.options import make_options, names_arguments
from outfall.possession.possession import check, find_moved, open_target
from outfall.s3.clean_up import abort_uploads, dead_pieces, delete_pieces, find_uploads
from outfall.s3.commit import S3Staging
from outfall.s3.connection import ConnectionCheck
from outfall.s3.location import store_name
from outfall.s3.manifest import Manifest, Manifests
from outfall.s3.options import S3Arguments, S3Options
from outfall.s3.rolling.pieces import WriterState, names_in
from outfall.s3.rolling.writer import RollingWriter
from outfall.s3.staged import StagedObject
from outfall.s3.store import SessionFactory, Store
from outfall.s3.target import PrefixPort
from outfall.s3.upload import UploadAttempt
from outfall.s3.writer import S3Writer
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.storage.commit import StorageCommitter
from outfall.storage.layout import withdraw_layout
from outfall.storage.sink import StorageSink
from outfall.target_record import TargetRecord
from outfall.trace_points import reached


class S3Sink(
    DynamicSink[Any],
    StorageSink,
    SupportsCommitter[StagedObject],
    SupportsPostCommitTopology[StagedObject],
    SupportsWriterState[Any, WriterState],
    SupportsBufferedRows[WriterState],
):
    """Writes rows into the objects of an S3 bucket, as JSON lines, CSV, Parquet or text.

    Item type: rows (dicts or Arrow batches); for `format="text"` one string column.

    Requirements: the bucket must exist, with permission to put, list and abort below the prefix. The driver and all
    executors must reach the same bucket.

    Parallelism: each Spark task uploads its own objects (one per partition directory) as parts of invisible uploads.
    The driver completes the uploads when their epoch is recorded, several at a time.

    With `roll_bytes`, `roll_interval` or `roll_rows`, the rows of small epochs are buffered in hidden objects of the
    bucket until one task composes a large object. `outfall.spark.drain` and the end of a batch job deliver buffered
    rows. `workers=` then sets the number of writing tasks.

    Guarantee: exactly once, after retries, crashes, stale tasks and lost responses. Objects appear one by one. The
    manifest of an epoch is written last, for readers that must see either all or none of it.

    Args:
        bucket: the bucket; or use `path="s3://bucket/prefix"`.
        prefix: the prefix of all keys.
        session_factory: returns a `boto3.session.Session`, in each process and again after credentials have expired; a
            picklable callable without arguments. By default, boto3's own chain.
        options: `format`, `partition_by`, `part_bytes`, `sse`, …, see `S3Options`.

    Raises:
        ConfigurationError: names every option that is wrong.
    """

    options: S3Options

    @names_arguments
    def __init__(
        self,
        bucket: str = "",
        prefix: str = "",
        *,
        session_factory: SessionFactory | None = None,
        **options: Unpack[S3Arguments],
    ) -> None:
        self.options = make_options(S3Options, {"bucket": bucket, "prefix": prefix, **options})
        if session_factory is not None and not callable(session_factory):
            raise ConfigurationError(
                "session_factory is not callable", do="set it to a function that returns a boto3.session.Session"
            )
        self.session_factory = session_factory
        self.clock: Callable[[], float] = time.time
        """Returns seconds since 1970, for `roll_interval`."""

    def __repr__(self) -> str:
        return f"S3Sink({self.options.url()!r}, format={self.options.format!r})"

    @property
    def store(self) -> Store:
        """A new store for the bucket."""
        return Store(self.options, self.session_factory)

    def kind(self) -> str:
        return "s3"

    def target(self) -> str:
        return self.options.url()

    def place(self) -> str:
        return f"{store_name(self.options.endpoint_url)} {self.options.url().rstrip('/')}/"

    def requires(self) -> Sequence[str]:
        return (
            "a strongly consistent store",
            "no lifecycle rule that aborts uploads or deletes objects within the longest downtime of the query, for"
            " example 7 days",
            *(("no lifecycle rule that deletes objects below _outfall/pieces/",) if self.options.rolls else ()),
        )

    def build(self, step_id: str, worker_index: int, worker_count: int) -> S3Writer | RollingWriter:
        return self._writer(())

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[WriterState]) -> S3Writer | RollingWriter:
        return self._writer(recovered)

    def keeps_writer_state(self) -> bool:
        return self.options.rolls

    def writer_state_serializer(self) -> ModelSerializer[WriterState]:
        return ModelSerializer(WriterState)

    def buffered_rows(self, state: WriterState) -> BufferedRows:
        return state.held()

    def max_time_in_buffer(self) -> timedelta:
        return self.options.roll_interval or super().max_time_in_buffer()

    def _writer(self, recovered: Sequence[WriterState]) -> S3Writer | RollingWriter:
        context, options = self.writer_context(), self.options
        attempt = UploadAttempt(replace(self.store, metrics=context.metrics), context)
        if not (options.rolls or recovered):
            return S3Writer(attempt, self.buckets)
        # Rows that were gathered with other options are written too.
        return RollingWriter(attempt, self.buckets, options.roll_bounds(self.clock), recovered)

    def port(self, incarnation: str, step_id: str) -> PrefixPort:
        """Return the prefix as the target of one step."""
        return PrefixPort(self.store, incarnation, step_id)

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        return find_moved(self.port(context.incarnation, context.step_id), context)

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        self.options.customer_key()  # fails early if the key is missing
        port = self.port(context.incarnation, context.step_id)
        check(port, context)
        return TargetCheck({}, self.check_layout(port, context, replaces=port.overwrites))

    def check_connection(self) -> Sequence[str]:
        return ConnectionCheck(self.store).check()

    def open_target(self, context: TargetContext[Any]) -> None:
        port = self.port(context.incarnation, context.step_id)
        open_target(port, context, None)
        self.keep_layout(port, context, context.found)

    def create_committer(self, context: CommitterInitContext) -> StorageCommitter[StagedObject]:
        return StorageCommitter(S3Staging(replace(self.store, metrics=context.metrics), context))

    def committable_serializer(self) -> ModelSerializer[StagedObject]:
        return ModelSerializer(StagedObject)

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[StagedObject]]) -> None:
        """Write the epoch's manifest."""
        if committed:
            Manifests(self.store).write(Manifest.of([message.value for message in committed]))
            reached("s3: manifest written")

    def clean_up(self, context: CleanUpContext) -> int:
        store, spared = self.store, _spared(context)
        aborted = abort_uploads(store, context.incarnation, spared)
        return aborted + delete_pieces(store, context.incarnation, spared, names_in(context.writer_states()))

    def withdraw(self, context: CleanUpContext) -> None:
        port = self.port(context.incarnation, context.step_id)
        withdraw_layout(port, context.incarnation)
        port.remove()

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        store, spared = self.store, _spared(context)
        uploads = find_uploads(store, context.incarnation, spared)
        pieces = dead_pieces(store, context.incarnation, spared, names_in(context.writer_states()))
        return [*(f"upload {upload_id} of {store.url(key)}" for key, upload_id in uploads), *map(store.url, pieces)]


def _spared(context: CleanUpContext) -> int:
    """Return the first generation that is kept.

    After the last epoch of all, this driver's own generation is not kept: everything that counts is published or in a
    recorded state.
    """
    return context.generation + context.final
