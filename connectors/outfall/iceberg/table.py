"""One loaded state of an Iceberg table, and its commits: each a compare-and-swap on the branch head."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from pydantic import ValidationError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    OAuthError,
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from outfall.errors import ConfigurationError, TransientError
from outfall.iceberg.ancestry import ancestors, is_beginning
from outfall.iceberg.catalog import Catalogue, is_of_disk
from outfall.iceberg.columns import lacking
from outfall.iceberg.files import CommitFiles, StoreOfFiles, filesystem_of, is_local
from outfall.iceberg.layout import IcebergLayout
from outfall.iceberg.partitions import Values, is_written_right
from outfall.iceberg.replacement import Replaced, Replacement, files_of, keep_retention
from outfall.iceberg.stored import IcebergFile, IcebergRows, KeyPlan, position_deletes, stored_files
from outfall.possession.record import unreadable_record
from outfall.store_errors import refuses
from outfall.tables.area import DataArea
from outfall.tables.data_file import EpochFiles
from outfall.tables.keyed import KeyedTable, StoredFile
from outfall.tables.record import TableRecord
from outfall.tables.table import HeadMovedError, UnclearCommitError
from outfall.trace_points import reached

log = logging.getLogger(__name__)

RECORD = "outfall.step."
"""Prefix of the name of a step's property; the incarnation follows."""

_REWRITTEN = "outfall.rewritten"
"""The entry of the summary of a merge, with the number of files that it replaced."""

_TRIES = 10
"""Number of attempts at a change of properties or columns after concurrent commits."""

_REFUSED = (ForbiddenError, UnauthorizedError, OAuthError)
_NOT_TAKEN = (BadRequestError, ValidationException, ValueError)
"""Texts of a commit that was not attempted.

As a ValueError: another branch was committed to meanwhile, so the sequence number is taken.
"""


@dataclass(frozen=True)
class IcebergTable(KeyedTable):
    """One state of a table, as returned by its catalog; pyiceberg's table is only read.

    Commits go to `branch`. `summary` has additional entries of each snapshot summary, and `where` names the table in
    texts.
    """

    loaded: Table
    catalogue: Catalogue
    branch: str
    summary: Mapping[str, str]
    where: str
    orphans = "keep files younger than the longest standstill of the query (older_than of remove_orphan_files)"

    @property
    def metadata(self) -> TableMetadata:
        """Iceberg's metadata of this state."""
        return self.loaded.metadata

    @property
    def columns(self) -> pa.Schema:
        return self.metadata.schema().as_arrow()

    @cached_property
    def files(self) -> IcebergLayout:
        return self._layout(self.metadata)

    def _layout(self, metadata: TableMetadata) -> IcebergLayout:
        def area(root: str) -> DataArea:
            with self.catalogue.translated_errors(f"the files of {self.where} cannot be reached"):
                filesystem_of(self.loaded.io, root)
            return DataArea(root, StoreOfFiles(root, self.catalogue.for_tasks(self.loaded.io.properties)))

        return IcebergLayout.of(metadata, area)

    @cached_property
    def _snapshots(self) -> dict[int, Snapshot]:
        return {snapshot.snapshot_id: snapshot for snapshot in self.metadata.snapshots}

    @cached_property
    def head(self) -> Snapshot | None:
        """The newest snapshot of the branch; `None` before the first."""
        ref = self.metadata.refs.get(self.branch)
        return None if ref is None else self._snapshots.get(ref.snapshot_id)

    def history(self) -> Iterator[Snapshot]:
        """Yield the head and its ancestors, also expired ones that older metadata files still have."""
        return iter(()) if self.head is None else ancestors(self.metadata, self.head, self._former)

    def _former(self, location: str) -> TableMetadata | None:
        """Read an older metadata file; `None` if it was deleted."""
        with self.catalogue.translated_errors(f"the former metadata {location} of {self.where} could not be read"):
            try:
                return FromInputFile.table_metadata(self.loaded.io.new_input(location))
            except FileNotFoundError:
                return None

    # --- columns

    def with_columns(self, rows: pa.Schema) -> IcebergLayout:
        adding = _adding(self.loaded, rows)
        return self.files if adding is None else self._layout(adding.table_metadata)

    def add_columns(self, rows: pa.Schema) -> None:
        self._change(lambda table: _adding(table, rows), "columns could not be added")

    def _change(self, staged: Callable[[Table], Transaction | None], what: str) -> None:
        """Commit a change that does not depend on the head, to the newest state; nothing if nothing is staged."""
        table: Table | None = self.loaded
        for _ in range(_TRIES):
            with self.catalogue.translated_errors(f"{self.where}: {what}"):
                transaction = None if table is None else staged(table)
                if transaction is None:
                    return
                try:
                    transaction.commit_transaction()
                    self.catalogue.make_durable()
                except CommitFailedException:
                    table = self._newest()
                    continue
                return
        raise TransientError(
            f"{self.where}: {what}", why=f"other writers committed first, {_TRIES} times", do="start the query again"
        )

    # --- records of steps

    def record(self, incarnation: str) -> TableRecord | None:
        text = self.metadata.properties.get(f"{RECORD}{incarnation}")
        if text is None:
            return None
        try:
            return TableRecord.model_validate_json(text)
        except ValidationError as error:
            raise unreadable_record(f"in the property {RECORD}{incarnation} of {self.where}", str(error)) from error

    def records(self, step: str) -> Iterable[TableRecord]:
        for name, text in self.metadata.properties.items():
            if name.startswith(RECORD):
                with suppress(ValidationError):
                    record = TableRecord.model_validate_json(text)
                    if record.step == step:
                        yield record

    def left_out(self, record: TableRecord) -> str | None:
        """Search the record's snapshot among the ancestors of the head.

        A chain that reaches a snapshot older than the record's without the record's snapshot proves a rollback, and one
        that ends at the first snapshot of a table a new beginning, as by CREATE OR REPLACE TABLE. An ancestor that not
        even older metadata files have ends the chain, too. Then the sequence numbers decide: they only grow, and a head
        with a lower number is an older state.
        """
        head, first = self.head, None
        at = f"snapshot {record.head} with epoch {record.epoch}"
        if head is None:
            return f"branch {self.branch} is empty, and {at} was committed to it"
        if (head.sequence_number or 0) < record.order:
            return f"it was rolled back to snapshot {head.snapshot_id}, which is older than {at}"
        for first in self.history():
            if first.snapshot_id == record.head:
                return None
            if (first.sequence_number or 0) <= record.order:
                return f"it was rolled back: {at} is not an ancestor of snapshot {head.snapshot_id}"
        if first is not None and is_beginning(first):
            return f"it was replaced: its history begins with snapshot {first.snapshot_id}, after {at}"
        return None

    def has_rows(self) -> bool:
        live = (self._entries(each) for each in self._manifests(self.head) if each.content == ManifestContent.DATA)
        return any(entry.data_file.record_count > 0 for entries in live for entry in entries)

    def never_had_rows(self) -> bool:
        # The number counts the snapshots of all branches, also expired ones.
        snapshots, numbered = self.metadata.snapshots, getattr(self.metadata, "last_sequence_number", None)
        return numbered == len(snapshots) and all(
            each.summary is not None
            and not any(int(each.summary[name] or 0) for name in ("added-data-files", "total-data-files"))
            for each in snapshots
        )

    def forget(self, incarnation: str) -> None:
        name = f"{RECORD}{incarnation}"

        def remove(table: Table) -> Transaction | None:
            known = name in table.metadata.properties
            return table.transaction().remove_properties(name) if known else None

        self._change(remove, f"the property {name} could not be removed")

    # --- files of snapshots

    def named(self, candidates: Collection[str]) -> Collection[str]:
        wanted, seen, found = set(candidates), set(), set()
        for snapshot in self.metadata.snapshots if wanted else ():
            for manifest in self._manifests(snapshot):
                if manifest.content == ManifestContent.DATA and manifest.manifest_path not in seen:
                    seen.add(manifest.manifest_path)
                    found |= {entry.data_file.file_path for entry in self._entries(manifest)} & wanted
            if found == wanted:
                break
        return found

    def _manifests(self, snapshot: Snapshot | None) -> list[ManifestFile]:
        if snapshot is None:
            return []
        with self.catalogue.translated_errors(f"the manifests of {self.where} could not be read"):
            return snapshot.manifests(self.loaded.io)

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the entries of a manifest that are alive."""
        with self.catalogue.translated_errors(f"a manifest of {self.where} could not be read"):
            return manifest.fetch_manifest_entry(self.loaded.io, discard_deleted=True)

    # --- merges

    @property
    def on_disk(self) -> bool:
        return is_local(self.files.area.root)

    def stored(self, keys: Sequence[str]) -> Iterator[IcebergFile]:
        plan = KeyPlan(self.metadata.schema(), self.metadata.specs())
        return stored_files(self._manifests(self.head), self._entries, plan, self.where)

    def rows(self, file: StoredFile) -> IcebergRows:
        stored, metadata = cast(IcebergFile, file), self.metadata

        def locate(location: str) -> tuple[pafs.FileSystem, str]:
            return filesystem_of(self.loaded.io, location)

        spec = metadata.specs()[stored.entry.spec_id]
        return IcebergRows(locate, stored, self.files.columns, metadata.schema(), spec)

    def check_removable(self, file: StoredFile) -> None:
        """Do nothing: `check_replaceable` has looked at the whole table."""

    def check_mergeable(self) -> None:
        """Reject a table whose files a merge cannot replace. Raises `ConfigurationError`."""
        self.check_replaceable()
        position_deletes(self._manifests(self.head), self._entries, self.where)

    def merged(self, record: TableRecord, directory: str) -> Collection[str] | None:
        snapshot = self._snapshots.get(record.head)
        if snapshot is None or snapshot.summary is None or snapshot.summary.get(_REWRITTEN) is None:
            return None
        added = (each for each in self._manifests(snapshot) if each.added_snapshot_id == record.head)
        return {
            file.file_path.rpartition("/")[2]
            for manifest in added
            for entry in self._entries(manifest)
            if (file := entry.data_file).file_path.rpartition("/")[0].endswith(f"/{directory}")
            and entry.status == ManifestEntryStatus.ADDED
        }

    # --- commits

    def commit(
        self, files: EpochFiles, record: TableRecord, *, replace: Collection[Values] | None = ()
    ) -> IcebergTable:
        return self._commit(files, record, self._replaced(replace), {})

    def commit_merged(
        self, files: EpochFiles, record: TableRecord, replaced: Collection[StoredFile], *, everything: bool
    ) -> IcebergTable:
        removed = [Replaced(each.manifest, each.entry) for each in cast(Collection[IcebergFile], replaced)]
        if everything:
            removed = self._replaced(None)
        return self._commit(files, record, removed, {_REWRITTEN: str(len(replaced))})

    def _commit(
        self, files: EpochFiles, record: TableRecord, replaced: Collection[Replaced], summary: Mapping[str, str]
    ) -> IcebergTable:
        io = CommitFiles(self.loaded.io)
        try:
            with self.catalogue.translated_errors(f"a commit to {self.where} could not be prepared"):
                transaction, snapshot_id = self._staged(io, files, record, replaced, summary)
        except Exception:
            self._roll_back(io)
            raise
        reached("iceberg: commit staged")
        try:
            committed = transaction.commit_transaction()
            reached("iceberg: committed")
            self.catalogue.make_durable()
        except CommitFailedException as error:
            if not self._landed(snapshot_id):
                self._roll_back(io)
            raise HeadMovedError(self.catalogue.hide(str(error))) from None
        except _REFUSED as error:
            self._roll_back(io)
            raise self.catalogue.explain(error, f"a commit to {self.where} was rejected") from None
        except _NOT_TAKEN as error:
            raise self._not_taken(io, snapshot_id, error) from None
        except Exception as error:
            self.catalogue.forget_open()
            if is_of_disk(error):
                # Not retried here: the data of a failed fsync may be lost, whatever the next fsync returns.
                raise self.catalogue.explain(error, f"a commit to {self.where} could not be made durable") from None
            if refuses(error):
                # Of its metadata: the catalog was not asked yet.
                raise self._not_taken(io, snapshot_id, error) from None
            raise UnclearCommitError(self.catalogue.hide(f"{type(error).__name__}: {error}")) from None
        committed.io = self.loaded.io
        return IcebergTable(committed, self.catalogue, self.branch, self.summary, self.where)

    def _staged(
        self,
        io: CommitFiles,
        files: EpochFiles,
        record: TableRecord,
        replaced: Collection[Replaced],
        summary: Mapping[str, str],
    ) -> tuple[Transaction, int]:
        """Write the manifests; return the update to commit, with the id of its snapshot."""
        table = copy.copy(self.loaded)
        table.io = io
        # pyiceberg's own retry would commit the files on any later state, without a check of a newer driver's record or
        # of an existing commit of this epoch. Only this copy has the setting; it is not committed.
        settings = {"commit.retry.num-retries": "0", "commit.manifest-merge.enabled": "true"}
        table.metadata = self.metadata.model_copy(update={"properties": self.metadata.properties | settings})
        transaction = table.transaction()
        if replaced:
            producer: Any = Replacement(transaction, io, self.branch, replaced, merges=self._merges)
        else:
            update = transaction.update_snapshot(branch=self.branch)
            producer = update.merge_append() if self._merges else update.fast_append()
        filled = record.model_copy(
            update={"head": producer.snapshot_id, "order": self.metadata.next_sequence_number()}
        ).model_dump_json()
        name = f"{RECORD}{record.incarnation}"
        producer.snapshot_properties = {**self.summary, **summary, name: filled}
        for file in files.files:
            producer.append_data_file(self.files.manifest_file(file, f"{files.root}/{files.directory}/{file.name}"))
        producer.commit()
        keep_retention(transaction, self.metadata.refs.get(self.branch))
        transaction.set_properties({name: filled})
        return transaction, producer.snapshot_id

    def _newest(self) -> Table | None:
        return self.catalogue.load(".".join(self.loaded.name()))

    @property
    def _merges(self) -> bool:
        """Whether a commit merges small manifests once there are many: Iceberg's default, but not pyiceberg's."""
        wanted = self.metadata.properties.get("commit.manifest-merge.enabled", "true").lower() != "false"
        return wanted and self._can_rewrite

    @property
    def _can_rewrite(self) -> bool:
        """Whether pyiceberg rewrites manifests without changes, including those of older partition specs."""
        schema = self.metadata.schema()
        return all(is_written_right(spec, schema) for spec in self.metadata.specs().values())

    def _landed(self, snapshot_id: int) -> bool:
        """Whether a rejected commit has succeeded in an earlier attempt of a proxy."""
        current = self._newest()
        return current is not None and current.metadata.snapshot_by_id(snapshot_id) is not None

    def _not_taken(self, io: CommitFiles, snapshot_id: int, error: Exception) -> Exception:
        """Return the error of a commit that the catalog rejected: usually other writers have changed the table."""
        current = self._newest()
        if current is None or current.metadata.snapshot_by_id(snapshot_id) is None:
            self._roll_back(io)
        if current is None or current.metadata_location != self.loaded.metadata_location:
            return HeadMovedError(self.catalogue.hide(str(error)))
        return self.catalogue.explain(error, f"a commit to {self.where} was rejected")

    def _roll_back(self, io: CommitFiles) -> None:
        try:
            io.roll_back()
        except Exception as error:
            log.info("%s: manifests of a rejected commit remain: %s", self.where, self.catalogue.hide(str(error)))

    def check_replaceable(self) -> None:
        """Reject the replacement of single files if pyiceberg cannot rewrite the table's partition values.

        Raises `ConfigurationError` if the table has, or had, such partitions.
        """
        if not self._can_rewrite:
            raise ConfigurationError(
                f"cannot replace rows of {self.where}: it is or was partitioned by a floating-point column, by"
                " two decimals of one type, by a required field of a struct, or by a dropped column",
                why="manifests contain other partitions too, and pyiceberg does not preserve such values when it"
                " rewrites them",
                do='use write_mode="append", or partition by another column',
            )

    def _replaced(self, partitions: Collection[Values] | None) -> list[Replaced]:
        """Return the files whose rows a commit removes."""
        if partitions is not None and not partitions:
            return []
        specs, now = self.metadata.specs(), self.metadata.spec()
        return list(files_of(partitions, self._manifests(self.head), self._entries, specs, now, self.where))


def _adding(table: Table, rows: pa.Schema) -> Transaction | None:
    """Stage the columns that the table lacks; `None` if it lacks none."""
    missing = lacking(table.schema(), rows)
    if not missing:
        return None
    transaction = table.transaction()
    with transaction.update_schema() as update:
        for path, kind in missing:
            update.add_column(path, kind)
    return transaction
