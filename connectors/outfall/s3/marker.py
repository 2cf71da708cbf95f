"""The marker: the object that says which step writes below a prefix, who opened it last, and what the store can.

Its key holds the incarnation, which is random: a task that sees the object sees the driver's bucket. It is written only
over the version that was read (`If-Match`), so that of two who write it at once one finds out.
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
"""Names of markers begin with hexadecimal digits, and come before this one."""


_FIELDS = (
    "incarnation", "step", "created", "conditional", "matching", "opened", "generation", "token", "epoch",
)  # fmt: skip
"""In the order in which they have always stood in the object."""


class ObjectMarker(StepMarker):
    """A marker's content."""

    conditional: bool = True
    """Whether the store refuses to replace an object where it is asked not to (`If-None-Match: *`)."""
    matching: bool | None = None
    """Whether it refuses to replace another version than the one that is named (`If-Match`); `None` in a marker of a
    release that did not ask."""
    opened: bool = True
    """Whether the prefix was taken into possession; until then the marker only announces it."""

    def body(self) -> bytes:
        """Return the content as it is stored."""
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
        """Return where a step's marker is."""
        return f"{self._root}{incarnation}.json"

    def url(self, incarnation: str) -> str:
        """Return the same as a URL, for texts."""
        return self._store.url(self.key(incarnation))

    def incarnations(self) -> list[str]:
        """Return the incarnations of all steps that write here, or did."""
        names = (key.removeprefix(self._root) for key in self._store.keys(self._root))
        # What comes after them may be very much: manifests and pieces.
        found = (_NAME.fullmatch(name) for name in takewhile(lambda name: name < _BEHIND_MARKERS, names))
        return [match[1] for match in found if match is not None]

    def find(self, incarnation: str) -> FoundMarker | None:
        """Return a step's marker, `None` when there is none.

        Raises:
            TargetLostError: it cannot be read.
        """
        content = self._store.read(self.key(incarnation))
        if content is None:
            return None
        try:
            marker = ObjectMarker.model_validate_json(content.body)
        except ValidationError as error:
            raise unreadable_marker(self.url(incarnation), f"its {len(content.body)} bytes are no marker") from error
        if marker.incarnation != incarnation:
            raise unreadable_marker(self.url(incarnation), f"it is of another step: {marker.step!r}")
        return FoundMarker(marker, content.etag)

    def write(self, marker: ObjectMarker, over: FoundMarker | None) -> bool:
        """Write a step's marker over the version that was read; `None` for none.

        Returns:
            Whether it was written. Else there is another version by now, or none; or an earlier try has written it, of
            which no answer came.
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
        """Remove the marker of a step, so that it stops."""
        self._store.demand(f"removing {self.url(incarnation)}", "delete_object", Key=self.key(incarnation))

    def open(self, found: FoundMarker, context: TargetContext[Any]) -> ObjectMarker | None:
        """Say in a marker that this driver has opened the prefix.

        Returns:
            The marker as it is now; `None` when it is gone.

        Raises:
            FencedError: a newer driver has opened it, or that of another copy of the recovery data.
        """
        current: FoundMarker | None = found
        while current is not None:
            marker, record = current.marker, current.marker.record
            if not marker.matching and record.generation < min(context.begun, default=0):
                # A driver that was late has put it over a newer one; `check_target` has looked at the manifests.
                record = replace(record, token=None)
            check_opening(self._store.options.url(), record, context)
            if marker.matching is None:
                marker = marker.model_copy(
                    update={"matching": self.refuses_another_version(self._probe(context.incarnation))}
                )
            after = marker.opened_by(context).model_copy(update={"opened": True})
            if after == current.marker or (self.write(after, current) and after.matching):
                return after
            # Where the condition is ignored, of two who write at once the later one is found now.
            current = self.find(context.incarnation)
        return None

    def advance(self, context: CommitterInitContext) -> ObjectMarker:
        """Say, before the first object of an epoch is published, how far publishing came.

        Raises:
            TargetLostError: the marker is gone; nothing may be published.
            FencedError: a newer driver has opened the prefix, or a later epoch was published; nothing may be any more.
        """
        while True:
            found = self.still(context)
            after = found.marker.advanced(context.epoch)
            if after == found.marker or (self.write(after, found) and after.matching):
                return after

    def still(self, context: CommitterInitContext) -> FoundMarker:
        """Look whether the prefix is still this step's, and no later epoch was published. Errors as of `advance`."""
        found = self.find(context.incarnation)
        if found is None:
            raise overwritten(self.url(context.incarnation))
        where = self._store.options.url()
        check_publishing(where, found.marker.record, context)
        if found.marker.epoch > context.epoch:
            raise FencedError(
                f"{where} is at epoch {found.marker.epoch}; nothing of this epoch is published any more",
                step=context.step_id,
                epoch=context.epoch,
                why="a newer driver has finished the epoch, or the recovery data was restored from an older copy",
                do="nothing, if the newer driver is meant to run; else restore the newest recovery data",
            )
        return found

    def check_task(self, context: WriterInitContext) -> None:
        """Check in a task that it sees the bucket that the driver opened, and that none has opened it since.

        Raises:
            UnsharedTargetError: naming this host and the prefix.
            TargetLostError: another query has overwritten what lies here.
            FencedError: another driver has opened it.
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
            do="give driver and executors the same endpoint_url, region and account",
        )

    def refuse_stale(self, context: WriterInitContext, what: str) -> None:
        """Say of an attempt that misses something of its own whether that is since it is an old one.

        Args:
            context: the attempt.
            what: what is missing.

        Raises:
            StaleWriterError: a newer driver has opened the prefix.
            UnsharedTargetError, TargetLostError: see `check_task`.
        """
        try:
            self.check_task(context)
        except FencedError as error:
            raise StaleWriterError(
                what,
                step=context.step_id,
                epoch=context.epoch,
                why="this attempt is an old one, which another driver has overtaken; what it wrote was cleaned up",
                do="nothing, if that one goes on; otherwise start the query again",
            ) from error

    def announce(self, context: TargetContext[Any]) -> FoundMarker | None:
        """Find out what the store can, and make the marker of a step that comes to the prefix for the first time.

        Returns:
            The marker; `None` when it was removed in that moment.

        Raises:
            FencedError: another driver of the step was faster.
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
        """Put an object twice, and complete an upload over it, under a key that is nobody else's; then remove both.

        Both are asked: stores came to honour the condition in one before the other. An object that an earlier look has
        left is as good as a new one.

        Args:
            key: the key, below `_outfall/`.

        Raises:
            TransientError, TargetError: the store refuses for another reason.
        """
        condition = {"IfNoneMatch": "*"}
        try:
            self._refused("put_object", Key=key, Body=b"1", **condition)
            return self._refused("put_object", Key=key, Body=b"2", **condition) and self._refuses_to_complete(key)
        finally:
            with suppress(*FAILURES):
                self._store.ask("delete_object", Key=key)

    def refuses_another_version(self, key: str) -> bool:
        """Put an object over a version that there is none of, and remove it again if that was done.

        Args:
            key: the key, below `_outfall/`.

        Raises:
            TransientError, TargetError: the store refuses for another reason.
        """
        if self._refused("put_object", Key=key, Body=b"4", IfMatch=f'"{"0" * 32}"'):
            return True
        with suppress(*FAILURES):
            self._store.ask("delete_object", Key=key)
        return False

    def _refuses_to_complete(self, key: str) -> bool:
        doing = f"looking at what {self._store.options.url()} can"
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
        """Whether the store refuses a request because of its condition. Some do not know the condition."""
        doing = f"looking at what {self._store.options.url()} can"
        try:
            self._store.call(doing, request, **arguments)
        except TargetError as error:
            if is_not_implemented(error.__cause__):
                return False
            raise
        except FAILURES as error:
            # S3 says of a version that does not exist: no such key.
            if classify(error) is FailureKind.TAKEN or ("IfMatch" in arguments and classify(error) is FailureKind.GONE):
                return True
            raise translated(doing, error) from error
        return False

    def _warn(self, marker: ObjectMarker) -> None:
        where = self._store.options.url()
        if not marker.conditional:
            log.warning(
                "step %r: %s does not honour If-None-Match. Each key is looked at before it is published instead, so"
                " that what others write under a key of ours in that moment is replaced; our own rows are there once"
                " all the same",
                marker.step,
                where,
            )
        if not marker.matching:
            log.warning(
                "step %r: %s does not honour If-Match. Let no two queries take this prefix, and no two drivers run on"
                " copies of one checkpoint, at the same moment: each looks for the other before and after it writes,"
                " and may miss it in between",
                marker.step,
                where,
            )
