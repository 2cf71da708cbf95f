"""The marker: the object that says which step writes below a prefix, how far its commits came, and what the store can.

Its key holds the incarnation, which is random: a task that sees the object sees the driver's bucket.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.capabilities import CommitterInitContext
from outfall.errors import FencedError, TargetError, TargetLostError, UnsharedTargetError
from outfall.s3.answers import FAILURES, Answer, classify, is_not_implemented
from outfall.s3.failures import translated
from outfall.s3.names import SIDECAR
from outfall.s3.store import Store
from outfall.steps import reached

log = logging.getLogger(__name__)


class Marker(BaseModel):
    """A marker's content."""

    model_config = ConfigDict(frozen=True)

    incarnation: str
    step: str = ""
    created: str = ""
    conditional: bool = True
    """Whether the store refuses to replace an object where it is asked not to (`If-None-Match: *`)."""
    generation: int = 0
    """The newest generation whose objects were published, or were about to be."""
    epoch: int = -1
    """The newest such epoch."""

    def advanced(self, generation: int, epoch: int) -> Marker:
        """Return the marker as it is once an epoch is published."""
        update = {"generation": max(self.generation, generation), "epoch": max(self.epoch, epoch)}
        return self.model_copy(update=update)


class Markers:
    """The markers below a sink's prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = f"{store.options.root}{SIDECAR}/"

    def key(self, incarnation: str) -> str:
        """Return where a step's marker is."""
        return f"{self._root}{incarnation}.json"

    def incarnations(self) -> list[str]:
        """Return the incarnations of all steps that write here, or did."""
        names = (key.removeprefix(self._root) for key in self._store.keys(self._root))
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and "/" not in name]

    def read(self, incarnation: str) -> Marker | None:
        """Return a step's marker, `None` when there is none; of one that cannot be read only that it is there."""
        content = self._store.get(self.key(incarnation))
        if content is None:
            return None
        try:
            return Marker.model_validate_json(content)
        except ValidationError:
            return Marker(incarnation=incarnation)

    def write(self, marker: Marker) -> None:
        """Write a step's marker. Two drivers of the step may do so at once; the next reader sees one of the two."""
        self._put(self.key(marker.incarnation), marker.model_dump_json().encode())

    def remove(self, incarnation: str) -> None:
        """Remove the marker of a step, so that it stops."""
        self._store.call("removing a marker", "delete_object", Key=self.key(incarnation))

    def advance(self, context: CommitterInitContext) -> Marker:
        """Say, before the first object of an epoch is published, how far publishing came.

        Raises:
            TargetLostError: the marker is gone; nothing may be published.
            FencedError: a newer generation or a later epoch was published since; nothing may be any more.
        """
        found = self.read(context.incarnation)
        if found is None:
            raise TargetLostError(
                f"{self._store.url(self.key(context.incarnation))} does not exist",
                why="what this query wrote was deleted, or overwritten by another query, while it ran",
                do="restore the objects, or start the query with a new checkpoint",
            )
        if found.generation > context.generation or found.epoch > context.epoch:
            raise FencedError(
                f"{self._store.options.url()} is at generation {found.generation}, epoch {found.epoch}; nothing of this"
                " epoch is published any more",
                step=context.step_id,
                epoch=context.epoch,
                why=f"its objects were recorded under generation {context.generation}: a newer driver has finished the"
                " epoch, or the recovery data was restored from an older copy",
                do="nothing, if the newer driver is meant to run; else restore the newest recovery data",
            )
        after = found.advanced(context.generation, context.epoch)
        if after != found:
            self.write(after)
        return after

    def check_shared(self, incarnation: str) -> None:
        """Check in a task that it sees the bucket that the driver opened.

        Raises:
            UnsharedTargetError: naming this host and the prefix.
        """
        if self.read(incarnation) is None:
            raise UnsharedTargetError(
                f"host {socket.gethostname()} does not see the driver's {self._store.options.url()}",
                why=f"the marker {self._store.url(self.key(incarnation))}, which the driver wrote, is not there",
                do="give driver and executors the same endpoint_url, region and account; if they have them, another"
                " query has overwritten what lies here",
            )

    def make(self, incarnation: str, step: str) -> Marker:
        """Find out what the store can, and make the marker of a step that opens the prefix for the first time."""
        marker = Marker(
            incarnation=incarnation,
            step=step,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            conditional=self.refuses_to_replace(f"{self._root}.probe-{incarnation}"),
        )
        if not marker.conditional:
            log.warning(
                "step %r: %s does not honour If-None-Match. Each key is looked at before it is published instead, so"
                " that what others write under a key of ours in that moment is replaced; our own rows are there once"
                " all the same",
                step,
                self._store.options.url(),
            )
        self.write(marker)
        reached("s3: marker created")
        return marker

    def refuses_to_replace(self, key: str) -> bool:
        """Put an object twice, and complete an upload over it, under a key that is nobody else's; then remove both.

        Both are asked: stores came to honour the condition in one before the other. An object that an earlier look has
        left is as good as a new one.

        Args:
            key: the key, below `_outfall/`.

        Raises:
            TransientError, TargetError: the store refuses for another reason.
        """
        try:
            self._taken("put_object", key, Body=b"1")
            return self._taken("put_object", key, Body=b"2") and self._refuses_to_complete(key)
        finally:
            with suppress(*FAILURES):
                self._store.ask("delete_object", Key=key)

    def _refuses_to_complete(self, key: str) -> bool:
        doing = f"looking at what {self._store.options.url()} can"
        upload_id = self._store.call(doing, "create_multipart_upload", Key=key)["UploadId"]
        upload = {"Key": key, "UploadId": upload_id}
        try:
            part = self._store.call(doing, "upload_part", **upload, PartNumber=1, Body=b"3")
            parts = [{"PartNumber": 1} | {name: part[name] for name in part if name.startswith(("ETag", "Checksum"))}]
            parts[0].pop("ChecksumType", None)
            return self._taken("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
        finally:
            with suppress(*FAILURES):
                self._store.ask("abort_multipart_upload", **upload)

    def _taken(self, request: str, key: str | None = None, **arguments: object) -> bool:
        """Whether the store refuses a request because there is an object already. Some do not know the condition."""
        given = arguments if key is None else arguments | {"Key": key}
        try:
            self._store.call(f"looking at what {self._store.options.url()} can", request, **given, IfNoneMatch="*")
        except TargetError as error:
            if is_not_implemented(error.__cause__):
                return False
            raise
        except FAILURES as error:
            if classify(error) is Answer.TAKEN:
                return True
            raise translated(f"looking at what {self._store.options.url()} can", error) from error
        return False

    def _put(self, key: str, content: bytes) -> None:
        doing = f"writing {self._store.url(key)}"
        try:
            self._store.call(doing, "put_object", Key=key, Body=content, ContentType="application/json")
        except FAILURES as error:
            raise translated(doing, error) from error
