"""The record of a step below a prefix: an object with the step, its last driver, and the features of the store.

Its key contains the random incarnation, so a task that finds the object has access to the driver's bucket. A record is
written only over the version that was read (`If-Match`), so two concurrent writers cannot both succeed.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from itertools import takewhile
from typing import Any, Self

from pydantic import ValidationError

from outfall.capabilities import TargetContext, WriterInitContext
from outfall.errors import FencedError, StaleWriterError, TargetError
from outfall.possession.possession import Change, FoundRecord
from outfall.possession.record import StepRecord, overwritten, unreadable_record, unshared
from outfall.s3.errors import FAILURES, FailureKind, classify, is_not_implemented, translated
from outfall.s3.store import Store
from outfall.storage.layout import DirectoryLayout
from outfall.storage.names import SIDECAR
from outfall.store_errors import Meaning, meaning_of
from outfall.target_record import check_writing
from outfall.trace_points import reached

log = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9a-f]{16})\.json")
_BEHIND_RECORDS = "g"
"""Names of records begin with hexadecimal digits and sort before this string."""


_FIELDS = (
    "incarnation", "step", "created", "conditional", "matching", "opened", "generation", "token", "epoch",
)  # fmt: skip
"""The stable order of the fields in the object."""


class ObjectRecord(StepRecord):
    """The content of a record."""

    conditional: bool = True
    """Whether the store supports `If-None-Match: *`."""
    matching: bool = False
    """Whether the store supports `If-Match`."""
    opened: bool = True
    """Whether the step has taken possession of the prefix; until then, the record only announces it."""
    layout: DirectoryLayout | None = None
    """The layout of the prefix, in records of releases that stored it here."""

    @property
    def ready(self) -> bool:
        """See `StoredRecord.ready`."""
        return self.opened

    def opened_by(self, context: TargetContext[Any]) -> Self:
        return super().opened_by(context).model_copy(update={"opened": True})

    def body(self) -> bytes:
        """Return the stored content."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        if self.layout is not None:
            fields["layout"] = self.layout.model_dump()
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


class ObjectRecords:
    """The records below a sink's prefix, or below another one that ends in `/`."""

    def __init__(self, store: Store, root: str | None = None) -> None:
        self._store = store
        self._root = f"{store.options.root if root is None else root}{SIDECAR}/"

    def key(self, incarnation: str) -> str:
        """Return the key of a step's record."""
        return f"{self._root}{incarnation}.json"

    def url(self, incarnation: str) -> str:
        """Return the URL of a step's record, for messages."""
        return self._store.url(self.key(incarnation))

    def incarnations(self) -> list[str]:
        """Return the incarnations of all steps that write here or have written here."""
        names = (key.removeprefix(self._root) for key in self._store.keys(self._root))
        # Stop after the records, because many manifests and pieces may follow.
        found = (_NAME.fullmatch(name) for name in takewhile(lambda name: name < _BEHIND_RECORDS, names))
        return [match[1] for match in found if match is not None]

    def find(self, incarnation: str) -> FoundRecord[ObjectRecord] | None:
        """Return a step's record, with the ETag of its object; `None` if there is none.

        Raises `TargetLostError` if it cannot be read.
        """
        content = self._store.read(self.key(incarnation))
        if content is None:
            return None
        try:
            record = ObjectRecord.model_validate_json(content.body)
        except ValidationError as error:
            raise unreadable_record(
                self.url(incarnation), f"its {len(content.body)} bytes are not a valid record"
            ) from error
        if record.incarnation != incarnation:
            raise unreadable_record(self.url(incarnation), f"it belongs to another step: {record.step!r}")
        return FoundRecord(record, content.etag)

    def write(self, record: ObjectRecord, over: FoundRecord[ObjectRecord] | None) -> bool:
        """Write a step's record over the version that was read, `None` if there was none; return whether it was.

        If not, there is another version or none; or an earlier attempt has written it, but its response was lost.
        """
        if over is None:
            condition = {"IfNoneMatch": "*"} if record.conditional else {}
        else:
            condition = {"IfMatch": over.version} if record.matching else {}
        try:
            self._store.put(self.key(record.incarnation), record.body(), ContentType="application/json", **condition)
        except FAILURES as error:
            if classify(error) is FailureKind.TAKEN or (condition and classify(error) is FailureKind.GONE):
                return False
            raise translated(f"writing {self.url(record.incarnation)}", error) from error
        return True

    def update(self, incarnation: str, change: Change[ObjectRecord]) -> ObjectRecord | None:
        """See `EpochPort.update`."""
        while True:
            found = self.find(incarnation)
            if found is None:
                return None
            after = change(found)
            # If the store ignores the condition, the next read finds the later one of two concurrent writers.
            if after == found.stored or (self.write(after, found) and after.matching):
                return after

    def remove(self, incarnation: str) -> None:
        """Remove the record of a step, so that its query fails."""
        self._store.demand(f"removing {self.url(incarnation)}", "delete_object", Key=self.key(incarnation))

    def check_task(self, context: WriterInitContext) -> None:
        """Check in a task that it has access to the driver's bucket, and that no other driver has opened the prefix.

        Raises `UnsharedTargetError` with this host and the prefix, `TargetLostError` if another query has overwritten
        the prefix, and `FencedError` if another driver has opened it.
        """
        found = self.find(context.incarnation)
        if found is not None:
            check_writing(self._store.options.url(), found.stored.record, context)
            return
        if self.incarnations():
            raise overwritten(self.url(context.incarnation))
        raise unshared(
            self._store.options.url(),
            self.url(context.incarnation),
            do="give the driver and executors the same endpoint_url, region and account",
        )

    def refuse_stale(self, context: WriterInitContext, what: str) -> None:
        """Raise `StaleWriterError` if an attempt lacks an upload or a piece because a newer driver opened the prefix.

        Raises `UnsharedTargetError` and `TargetLostError` like `check_task`. `what` is the failed operation.
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

    def create(self, context: TargetContext[Any]) -> None:
        """Test the features of the store, and create the record of a step."""
        probe = self._probe(context.incarnation)
        record = ObjectRecord.of(
            context,
            conditional=self.refuses_to_replace(probe),
            matching=self.refuses_another_version(probe),
            opened=False,
        )
        self._warn(record)
        self.write(record, None)
        reached("s3: record created")

    def _probe(self, incarnation: str) -> str:
        return f"{self._root}.probe-{incarnation}"

    def refuses_to_replace(self, key: str) -> bool:
        """Return whether the store supports `If-None-Match`, by a test with an object and an upload that are removed.

        Both are tested, because some stores support the condition for puts but not for uploads. The key is an unused
        one below `_outfall/`; an object that an earlier test has left does not matter. Raises `TransientError` if the
        store did not respond in time, and `TargetError` if it rejects the test for another reason.
        """
        condition = {"IfNoneMatch": "*"}
        try:
            self._refused("put_object", Key=key, Body=b"1", **condition)
            return self._replaced("put_object", Key=key, Body=b"2", **condition) and self._refuses_to_complete(key)
        finally:
            with suppress(*FAILURES):
                self._store.ask("delete_object", Key=key)

    def refuses_another_version(self, key: str) -> bool:
        """Return whether the store supports `If-Match`, by a put over a version that does not exist.

        An object that the test creates is removed. The key and the errors are as for `refuses_to_replace`.
        """
        if self._replaced("put_object", Key=key, Body=b"4", IfMatch=f'"{"0" * 32}"'):
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
            return self._replaced("complete_multipart_upload", **asked)
        finally:
            with suppress(*FAILURES):
                self._store.ask("abort_multipart_upload", **upload)

    def _replaced(self, request: str, **arguments: object) -> bool:
        """Return `_refused` of a request on an object that exists.

        A policy that retains objects refuses it whatever its condition, so that nothing is known of the condition.
        """
        try:
            return self._refused(request, **arguments)
        except TargetError as error:
            if error.__cause__ is None or meaning_of(error.__cause__) not in (Meaning.DENIED, Meaning.RETAINED):
                raise
            return False

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

    def _warn(self, record: ObjectRecord) -> None:
        where = self._store.options.url()
        if not record.conditional:
            log.warning(
                "step %r: %s does not support If-None-Match. The driver checks each key before it publishes instead. An"
                " object that another program writes under the same key in between is replaced. The rows of this step"
                " are still written exactly once",
                record.step,
                where,
            )
        if not record.matching:
            log.warning(
                "step %r: %s does not support If-Match. Do not start two queries on this prefix, or two drivers on"
                " copies of one checkpoint, at the same time: each checks for the other before and after it writes, and"
                " may miss it in between",
                record.step,
                where,
            )
