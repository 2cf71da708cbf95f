"""The marker: an object with the step that writes below a prefix, its last driver, and the features of the store.

Its key contains the random incarnation, so a task that finds the object has access to the driver's bucket. A marker is
written only over the version that was read (`If-Match`), so two concurrent writers cannot both succeed.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from outfall.capabilities import CommitterInitContext, TargetContext, WriterInitContext
from outfall.errors import FencedError, StaleWriterError, TargetError
from outfall.s3.errors import FAILURES, FailureKind, classify, is_not_implemented, translated
from outfall.s3.store import Store
from outfall.storage.marker import StepMarker, overwritten, unreadable_marker, unshared
from outfall.storage.names import SIDECAR
from outfall.target_record import check_opening, check_publishing, check_writing
from outfall.trace_points import reached

log = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9a-f]{16})\.json")
_BEHIND_MARKERS = "g"
"""Names of markers begin with hexadecimal digits and sort before this string."""


_FIELDS = (
    "incarnation", "step", "created", "conditional", "matching", "opened", "generation", "token", "epoch",
)  # fmt: skip
"""The stable order of the fields in the object."""


class ObjectMarker(StepMarker):
    """The content of a marker."""

    conditional: bool = True
    """Whether the store supports `If-None-Match: *`."""
    matching: bool | None = None
    """Whether the store supports `If-Match`; `None` in markers of releases that did not test it."""
    opened: bool = True
    """Whether the step has taken possession of the prefix; until then, the marker only announces it."""

    def body(self) -> bytes:
        """Return the stored content."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class FoundMarker:
    """A marker, and the version of its object."""

    marker: ObjectMarker
    etag: str


class Markers:
    """The markers below a sink's prefix, or below another one that ends in `/`."""

    def __init__(self, store: Store, root: str | None = None) -> None:
        self._store = store
        self._root = f"{store.options.root if root is None else root}{SIDECAR}/"

    def key(self, incarnation: str) -> str:
        """Return the key of a step's marker."""
        return f"{self._root}{incarnation}.json"

    def url(self, incarnation: str) -> str:
        """Return the URL of a step's marker, for messages."""
        return self._store.url(self.key(incarnation))

    def incarnations(self) -> list[str]:
        """Return the incarnations of all steps that write here or have written here."""
        names = (key.removeprefix(self._root) for key in self._store.keys(self._root))
        # Stop after the markers, because many manifests and pieces may follow.
        found = (_NAME.fullmatch(name) for name in takewhile(lambda name: name < _BEHIND_MARKERS, names))
        return [match[1] for match in found if match is not None]

    def find(self, incarnation: str) -> FoundMarker | None:
        """Return a step's marker; `None` if there is none.

        Raises:
            TargetLostError: it cannot be read.
        """
        content = self._store.read(self.key(incarnation))
        if content is None:
            return None
        try:
            marker = ObjectMarker.model_validate_json(content.body)
        except ValidationError as error:
            raise unreadable_marker(
                self.url(incarnation), f"its {len(content.body)} bytes are not a valid marker"
            ) from error
        if marker.incarnation != incarnation:
            raise unreadable_marker(self.url(incarnation), f"it belongs to another step: {marker.step!r}")
        return FoundMarker(marker, content.etag)

    def write(self, marker: ObjectMarker, over: FoundMarker | None) -> bool:
        """Write a step's marker over the version that was read; `None` if there was none.

        Returns:
            Whether it was written. If not, there is another version or none; or an earlier attempt has written it, but
            its response was lost.
        """
        if over is None:
            condition = {"IfNoneMatch": "*"} if marker.conditional else {}
        else:
            condition = {"IfMatch": over.etag} if marker.matching else {}
        try:
            self._store.put(self.key(marker.incarnation), marker.body(), ContentType="application/json", **condition)
        except FAILURES as error:
            if classify(error) is FailureKind.TAKEN or (condition and classify(error) is FailureKind.GONE):
                return False
            raise translated(f"writing {self.url(marker.incarnation)}", error) from error
        return True

    def remove(self, incarnation: str) -> None:
        """Remove the marker of a step, so that its query fails."""
        self._store.demand(f"removing {self.url(incarnation)}", "delete_object", Key=self.key(incarnation))

    def open(self, found: FoundMarker, context: TargetContext[Any]) -> ObjectMarker | None:
        """Record in the marker that this driver has opened the prefix.

        Returns:
            The new marker; `None` if the marker is missing.

        Raises:
            FencedError: a newer driver, or one with another copy of the recovery log, has opened the prefix.
        """
        current: FoundMarker | None = found
        while current is not None:
            marker, record = current.marker, current.marker.record
            if not marker.matching and record.generation < min(context.begun, default=0):
                # A stale driver has replaced a newer marker. `check_target` has checked the manifests.
                record = replace(record, token=None)
            check_opening(self._store.options.url(), record, context)
            if marker.matching is None:
                marker = marker.model_copy(
                    update={"matching": self.refuses_another_version(self._probe(context.incarnation))}
                )
            after = marker.opened_by(context).model_copy(update={"opened": True})
            if after == current.marker or (self.write(after, current) and after.matching):
                return after
            # If the store ignores the condition, this read finds the later one of two concurrent writers.
            current = self.find(context.incarnation)
        return None

    def advance(self, context: CommitterInitContext) -> ObjectMarker:
        """Record, before the first object of an epoch is published, that the epoch is being published.

        Raises:
            TargetLostError: the marker is missing. Nothing may be published.
            FencedError: a newer driver has opened the prefix, or a later epoch was published. Nothing may be published.
        """
        while True:
            found = self.still(context)
            after = found.marker.advanced(context.epoch)
            if after == found.marker or (self.write(after, found) and after.matching):
                return after

    def still(self, context: CommitterInitContext) -> FoundMarker:
        """Check that the prefix still belongs to this driver and that no later epoch was published.

        Raises:
            TargetLostError: see `advance`.
            FencedError: see `advance`.
        """
        found = self.find(context.incarnation)
        if found is None:
            raise overwritten(self.url(context.incarnation))
        where = self._store.options.url()
        check_publishing(where, found.marker.record, context)
        if found.marker.epoch > context.epoch:
            raise FencedError(
                f"{where} is at epoch {found.marker.epoch}, so this epoch is no longer published",
                step=context.step_id,
                epoch=context.epoch,
                why="a newer driver has finished the epoch, or the recovery log was restored from an older copy",
                do="nothing, if the newer driver is the intended one; otherwise restore the newest recovery log",
            )
        return found

    def check_task(self, context: WriterInitContext) -> None:
        """Check in a task that it has access to the driver's bucket, and that no other driver has opened the prefix.

        Raises:
            UnsharedTargetError: names this host and the prefix.
            TargetLostError: another query has overwritten the prefix.
            FencedError: another driver has opened the prefix.
        """
        found = self.find(context.incarnation)
        if found is not None:
            check_writing(self._store.options.url(), found.marker.record, context)
            return
        if self.incarnations():
            raise overwritten(self.url(context.incarnation))
        raise unshared(
            self._store.options.url(),
            self.url(context.incarnation),
            do="give the driver and executors the same endpoint_url, region and account",
        )

    def refuse_stale(self, context: WriterInitContext, what: str) -> None:
        """Raise an error if an attempt lacks an upload or a piece because it is stale.

        Args:
            context: the attempt.
            what: the failed operation.

        Raises:
            StaleWriterError: a newer driver has opened the prefix.
            UnsharedTargetError: see `check_task`.
            TargetLostError: see `check_task`.
        """
        try:
            self.check_task(context)
        except FencedError as error:
            raise StaleWriterError(
                what,
                step=context.step_id,
                epoch=context.epoch,
                why="this is a stale task: another driver has taken over and cleaned up its data",
                do="nothing, if that driver continues; otherwise start the query again",
            ) from error

    def announce(self, context: TargetContext[Any]) -> FoundMarker | None:
        """Test the features of the store, and create the marker of a step that opens the prefix for the first time.

        Returns:
            The marker; `None` if another query removed it at once.

        Raises:
            FencedError: another driver of the step has already created it.
        """
        probe = self._probe(context.incarnation)
        marker = ObjectMarker.of(
            context,
            conditional=self.refuses_to_replace(probe),
            matching=self.refuses_another_version(probe),
            opened=False,
        )
        self._warn(marker)
        self.write(marker, None)
        reached("s3: marker created")
        found = self.find(context.incarnation)
        if found is not None:
            check_opening(self._store.options.url(), found.marker.record, context)
        return found

    def _probe(self, incarnation: str) -> str:
        return f"{self._root}.probe-{incarnation}"

    def refuses_to_replace(self, key: str) -> bool:
        """Return whether the store supports `If-None-Match`, by a test with an object and an upload that are removed.

        Both are tested, because some stores support the condition for puts but not for uploads. An object that an
        earlier test has left does not matter.

        Args:
            key: an unused key below `_outfall/`.

        Raises:
            TransientError: the store did not respond in time.
            TargetError: the store rejects the test for another reason.
        """
        condition = {"IfNoneMatch": "*"}
        try:
            self._refused("put_object", Key=key, Body=b"1", **condition)
            return self._refused("put_object", Key=key, Body=b"2", **condition) and self._refuses_to_complete(key)
        finally:
            with suppress(*FAILURES):
                self._store.ask("delete_object", Key=key)

    def refuses_another_version(self, key: str) -> bool:
        """Return whether the store supports `If-Match`, by a put over a version that does not exist.

        Args:
            key: an unused key below `_outfall/`. An object that the test creates is removed.

        Raises:
            TransientError: the store did not respond in time.
            TargetError: the store rejects the test for another reason.
        """
        if self._refused("put_object", Key=key, Body=b"4", IfMatch=f'"{"0" * 32}"'):
            return True
        with suppress(*FAILURES):
            self._store.ask("delete_object", Key=key)
        return False

    def _refuses_to_complete(self, key: str) -> bool:
        doing = f"testing the features of {self._store.options.url()}"
        upload_id = self._store.call(doing, "create_multipart_upload", Key=key)["UploadId"]
        upload = {"Key": key, "UploadId": upload_id}
        try:
            part = self._store.call(doing, "upload_part", **upload, PartNumber=1, Body=b"3")
            parts = [{"PartNumber": 1} | {name: part[name] for name in part if name.startswith(("ETag", "Checksum"))}]
            parts[0].pop("ChecksumType", None)
            asked = {**upload, "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
            return self._refused("complete_multipart_upload", **asked)
        finally:
            with suppress(*FAILURES):
                self._store.ask("abort_multipart_upload", **upload)

    def _refused(self, request: str, **arguments: object) -> bool:
        """Return whether the store rejects a request because of its condition. Some do not support conditions."""
        doing = f"testing the features of {self._store.options.url()}"
        try:
            self._store.call(doing, request, **arguments)
        except TargetError as error:
            if is_not_implemented(error.__cause__):
                return False
            raise
        except FAILURES as error:
            # For a version that does not exist, S3 responds NoSuchKey.
            if classify(error) is FailureKind.TAKEN or ("IfMatch" in arguments and classify(error) is FailureKind.GONE):
                return True
            raise translated(doing, error) from error
        return False

    def _warn(self, marker: ObjectMarker) -> None:
        where = self._store.options.url()
        if not marker.conditional:
            log.warning(
                "step %r: %s does not support If-None-Match. The driver checks each key before it publishes instead. An"
                " object that another program writes under the same key in between is replaced. The rows of this step"
                " are still written exactly once",
                marker.step,
                where,
            )
        if not marker.matching:
            log.warning(
                "step %r: %s does not support If-Match. Do not start two queries on this prefix, or two drivers on"
                " copies of one checkpoint, at the same time: each checks for the other before and after it writes, and"
                " may miss it in between",
                marker.step,
                where,
            )
