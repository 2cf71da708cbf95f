"""The snapshot that replaces files: what pyiceberg's own does, without reading every manifest of the branch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.transforms import VoidTransform
from pyiceberg.utils.properties import property_as_int

from outfall.errors import TargetError
from outfall.iceberg.files import CommitFiles
from outfall.iceberg.partitions import Values, text_of

_RETENTION = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")


class Replaced(NamedTuple):
    """A data file that a commit removes."""

    manifest: str
    """The path of the manifest that has it."""
    file: ManifestDataFile


class Replacement(_OverwriteFiles):
    """Removes files by name, and reads and rewrites only the manifests that have them.

    pyiceberg's own producer finds manifests by partitions, which is a guess, and keeps each manifest of files that an
    older snapshot has removed: one more per commit. This one drops them, and merges small manifests as appends do.
    """

    def __init__(
        self, transaction: Transaction, io: CommitFiles, branch: str, replaced: Iterable[Replaced], *, merges: bool
    ) -> None:
        super().__init__(operation=Operation.OVERWRITE, transaction=transaction, io=io, branch=branch)
        self._merges = merges
        self._touched = set()
        for each in replaced:
            self._touched.add(each.manifest)
            self.delete_data_file(each.file)

    def _build_delete_files_partition_predicate(self) -> None:
        """Do nothing: the manifests are known."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        del spec_id
        return lambda manifest: manifest.manifest_path in self._touched

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        live = [each for each in manifests if self._is_live(each)]
        data = [each for each in live if each.content == ManifestContent.DATA]
        properties = self._transaction.table_metadata.properties
        manager: _ManifestMergeManager[_OverwriteFiles] = _ManifestMergeManager(
            target_size_bytes=_number(properties, TableProperties.MANIFEST_TARGET_SIZE_BYTES,
                                      TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT),
            min_count_to_merge=_number(properties, TableProperties.MANIFEST_MIN_MERGE_COUNT,
                                       TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT),
            merge_enabled=self._merges,
            snapshot_producer=self,
        )  # fmt: skip
        return manager.merge_manifests(data) + [each for each in live if each.content == ManifestContent.DELETES]

    def _is_live(self, manifest: ManifestFile) -> bool:
        """Whether a manifest says more than which files older snapshots have removed."""
        ours = manifest.added_snapshot_id == self.snapshot_id
        return ours or manifest.has_added_files() or manifest.has_existing_files()


def _number(properties: dict[str, str], name: str, default: int) -> int:
    found = property_as_int(properties, name, default)
    return default if found is None else found


def keep_retention(transaction: Any, ref: SnapshotRef | None) -> None:
    """Keep the retention of a branch, which pyiceberg's update of its head would remove."""
    if ref is not None:
        kept = {name: getattr(ref, name) for name in _RETENTION}
        transaction._updates = tuple(
            update.model_copy(update=kept) if isinstance(update, SetSnapshotRefUpdate) else update
            for update in transaction._updates
        )


def files_of(
    partitions: Collection[Values] | None,
    manifests: Iterable[ManifestFile],
    entries: Callable[[ManifestFile], Iterable[ManifestEntry]],
    specs: Mapping[int, PartitionSpec],
    now: PartitionSpec,
    where: str,
) -> Iterator[Replaced]:
    """Yield the data files of some partitions of the present spec, or all of them.

    Raises `TargetError` if the partition of a file with another spec does not determine the present one.
    """
    wanted = None if partitions is None else frozenset(partitions)
    for manifest in manifests:
        if manifest.content != ManifestContent.DATA:
            continue
        places = [] if wanted is None else _places(specs[manifest.partition_spec_id], now, where)
        for entry in entries(manifest):
            if wanted is None or _partition(entry.data_file, places) in wanted:
                yield Replaced(manifest.manifest_path, entry.data_file)


def _places(older: PartitionSpec, now: PartitionSpec, where: str) -> list[int | None]:
    """Return the positions of the present partition's values in a partition of another spec."""
    known = {(each.source_id, str(each.transform)): index for index, each in enumerate(older.fields)}
    places: list[int | None] = []
    for each in now.fields:
        place = known.get((each.source_id, str(each.transform)))
        if place is None and not isinstance(each.transform, VoidTransform):
            raise TargetError(
                f"cannot replace partitions of {where}",
                why=f"it has files with an older partitioning (spec {older.spec_id}), which does not determine"
                f" {each.name} of their rows",
                do="rewrite these files with the current partitioning (Spark: CALL system.rewrite_data_files)",
            )
        places.append(place)
    return places


def _partition(file: ManifestDataFile, places: list[int | None]) -> Values:
    values = file.partition
    return tuple(None if place is None else text_of(values[place]) for place in places)
