"""Checks whether a sink could write: the permissions below its prefix and the features of the store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from outfall.errors import OutfallError, TargetError
from outfall.s3.errors import FAILURES, describe, translated
from outfall.s3.record import ObjectRecords
from outfall.s3.store import Store
from outfall.storage.names import SIDECAR

_IGNORED = "the store does not support If-None-Match: the driver checks each key before it publishes instead"


class ConnectionCheck:
    """One check of a sink's prefix. Its uploads and objects have a random hidden name, and are removed at the end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._url = store.options.url()
        self._name = f"doctor-{secrets.token_hex(8)}"
        self._key = f"{store.options.root}{SIDECAR}/.{self._name}"

    def check(self) -> list[str]:
        """Try the operations that the sink needs; return one sentence per result.

        Raises `TransientError` if the store did not respond until `retry_deadline`, and `TargetError` with the rejected
        operation, the reason, and the permission or correction.
        """
        found = [self._list(), self._upload()]
        obstacle = self._obstacle()
        if self._deletes and obstacle:
            found.append(f"permission to delete objects was not tested: {obstacle}")
        elif self._deletes:
            found.append(f"objects below {self._url} may be deleted")
        return [*found, self._condition(obstacle)]

    @property
    def _deletes(self) -> bool:
        """Whether the sink needs to delete objects."""
        return self._store.options.rolls or self._store.options.existing.others == "delete"

    def _list(self) -> str:
        next(self._store.keys(self._store.options.root, most=1), None)
        self._store.get(self._key)  # it does not exist; without permission to read, the response is 403
        return f"{self._url} responds; objects below it may be listed and read"

    def _upload(self) -> str:
        begun: list[str] = []
        # The response with the upload id may be lost, and the permission to list uploads may be missing.
        with _undoing(lambda: self._abort(begun), lambda: self._abort(self._under_way())):
            begun.append(
                self._ask("beginning the upload of", "create_multipart_upload", **self._store.data())["UploadId"]
            )
            part: dict[str, Any] = {"PartNumber": 1, "Body": b"\n"}
            self._ask("sending a part of", "upload_part", UploadId=begun[0], **part)
            self._ask("listing the parts of", "list_parts", UploadId=begun[0], MaxParts=1)
        return f"an upload was begun below {self._url}, received a part, and was aborted; completion was not tested"

    def _under_way(self) -> list[str]:
        doing = f"listing uploads below {self._url}"
        page = self._store.demand(doing, "list_multipart_uploads", Prefix=self._key)
        return [upload["UploadId"] for upload in page.get("Uploads", []) if upload["Key"] == self._key]

    def _abort(self, upload_ids: Iterable[str]) -> None:
        for upload_id in upload_ids:
            doing = f"aborting the upload {upload_id} of {self._store.url(self._key)}, which otherwise remains,"
            self._store.abort_upload(doing, self._key, upload_id)

    def _obstacle(self) -> str | None:
        """Return the reason why an object might remain after it is deleted; `None` if it would not."""
        try:
            versioning = self._store.ask("get_bucket_versioning")
        except FAILURES as error:
            return f"the bucket does not report whether it is versioned ({describe(error)})"
        if versioning.get("Status"):
            return "the bucket is versioned, so deleted objects remain as old versions"
        doing = f"deleting below {self._url}"
        # An overwrite also deletes data, whose permissions may differ from those below `_outfall/`.
        overwrites = self._store.options.existing.others == "delete"
        key = f"{self._store.options.root}.{self._name}" if overwrites else self._key
        try:
            self._store.call(doing, "delete_object", Key=key)
        except TargetError as error:
            if self._deletes:
                raise
            return f"deleting is not permitted ({describe(error.__cause__ or error)})"
        except FAILURES as error:
            raise translated(doing, error) from error
        return None

    def _condition(self, obstacle: str | None) -> str:
        records = ObjectRecords(self._store)
        seen = (records.find(incarnation) for incarnation in records.incarnations())
        known = next((found.stored for found in seen if found is not None and found.stored.created), None)
        if known is not None:
            text = _told(conditional=known.conditional, matching=known.matching is not False)
            return f"{text}, as the step {known.step!r} found at {known.created}"
        if obstacle:
            return f"support for If-None-Match and If-Match is tested when the query first starts: {obstacle}"
        with _undoing(self._delete, lambda: self._abort(self._under_way())):
            conditional = records.refuses_to_replace(self._key)
            return _told(conditional=conditional, matching=records.refuses_another_version(self._key))

    def _delete(self) -> None:
        self._ask("removing the test object", "delete_object")

    def _ask(self, doing: str, request: str, **arguments: Any) -> Mapping[str, Any]:
        return self._store.demand(f"{doing} {self._store.url(self._key)}", request, Key=self._key, **arguments)


def _told(*, conditional: bool, matching: bool) -> str:
    if conditional and matching:
        return "the store supports If-None-Match and If-Match"
    text = "the store supports If-None-Match" if conditional else _IGNORED
    return text if matching else f"{text}; it does not support If-Match: start only one query at a time on a prefix"


@contextmanager
def _undoing(*undo: Callable[[], None]) -> Iterator[None]:
    """Run some functions at the end. After an error, run as many as possible and raise that error."""
    try:
        yield
    except BaseException:
        for each in undo:
            with suppress(OutfallError):
                each()
        raise
    for each in undo:
        each()
