"""Manifests: one object per epoch, written last, that lists the objects of the epoch.

Objects appear one by one while an epoch is committed. A reader that must see either all or none of an epoch takes the
keys from the manifests instead of a listing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from outfall.errors import RecordError
from outfall.s3.staged import StagedObject
from outfall.s3.store import Store
from outfall.storage.names import SIDECAR, AttemptName

if TYPE_CHECKING:
    pass

FORMAT = 1


class ManifestEntry(BaseModel):
    """One object of an epoch."""

    model_config = ConfigDict(frozen=True)

    key: str
    """The complete key."""
    size: int
    """Size in bytes."""
    rows: int


class Manifest(BaseModel):
    """The objects that one epoch of one step published."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    step: str
    incarnation: str
    epoch: int
    generation: int
    objects: tuple[ManifestEntry, ...]

    @property
    def rows(self) -> int:
        """The number of rows in all objects."""
        return sum(each.rows for each in self.objects)

    @property
    def size(self) -> int:
        """The size of all objects in bytes."""
        return sum(each.size for each in self.objects)

    @classmethod
    def of(cls, published: Sequence[StagedObject]) -> Manifest:
        """Return the manifest of an epoch with at least one object.

        Raises:
            RecordError: a key was not created by this sink.
        """
        first = AttemptName.parse(published[0].key, with_step=True)
        if first is None:
            raise RecordError(f"{published[0].key} is not a key of this sink", do="restore the recovery log")
        entries = sorted((each.key, each.size, each.rows) for each in published)
        return cls(
            step=first.step_id,
            incarnation=first.incarnation,
            epoch=first.epoch,
            generation=first.generation,
            objects=tuple(ManifestEntry(key=key, size=size, rows=rows) for key, size, rows in entries),
        )


class Manifests:
    """The manifests of a sink."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = f"{store.options.root}{SIDECAR}/manifests/"

    def key(self, incarnation: str, epoch: int) -> str:
        """Return the key of the manifest of an epoch."""
        return f"{self._root}{incarnation}/{epoch:010d}.json"

    def write(self, manifest: Manifest) -> None:
        """Write the manifest of an epoch. It may be written again after a crash."""
        key = self.key(manifest.incarnation, manifest.epoch)
        self._store.put(key, manifest.model_dump_json().encode(), ContentType="application/json")

    def since(self, incarnation: str, epoch: int) -> Iterator[str]:
        """Yield the manifest keys of an epoch and of later ones."""
        after = self.key(incarnation, epoch - 1) if epoch > 0 else ""
        return self._store.keys(f"{self._root}{incarnation}/", after=after, most=10)

    def all(self, incarnation: str | None = None) -> Iterator[str]:
        """Yield the keys of all manifests, including those of other steps, or of one incarnation."""
        return self._store.keys(f"{self._root}{incarnation}/" if incarnation else self._root)
