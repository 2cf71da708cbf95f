"""Whether a sink could write: the rights below its prefix and what the store can, without leaving anything there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from outfall.errors import OutfallError, TargetError
from outfall.s3.errors import FAILURES, describe, translated
from outfall.s3.marker import Markers
from outfall.s3.store import Store
from outfall.storage.names import SIDECAR

_HONOURED = "the store refuses to replace an object where it is asked not to (If-None-Match)"
_IGNORED = "the store does not honour If-None-Match: each key is looked at before it is published instead"


class ConnectionCheck:
    """One look at a sink's prefix. All that it makes has a random name below `_outfall/`, and is gone when it ends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._url = store.options.url()
        self._name = f"doctor-{secrets.token_hex(8)}"
        self._key = f"{store.options.root}{SIDECAR}/.{self._name}"

    def check(self) -> list[str]:
        """Try what the sink needs, and return what was found, one sentence each.

        Raises:
            TransientError: the store did not answer until `retry_deadline`.
            TargetError: what is refused, why, and what to grant or correct.
        """
        found = [self._list(), self._upload()]
        obstacle = self._obstacle()
        if self._deletes and obstacle:
            found.append(f"whether objects may be deleted was not found out: {obstacle}")
        elif self._deletes:
            found.append(f"objects below {self._url} may be deleted")
        return [*found, self._condition(obstacle)]

    @property
    def _deletes(self) -> bool:
        """Whether the sink cannot do without deleting."""
        return self._store.options.rolls or self._store.options.on_existing == "overwrite"

    def _list(self) -> str:
        next(self._store.keys(self._store.options.root, most=1), None)
        self._store.get(self._key)  # there is none; whoever may not read is told 403
        return f"{self._url} answers; what lies below it may be listed and read"

    def _upload(self) -> str:
        begun: list[str] = []
        # The answer that names an upload may be lost, and the right to list uploads may be missing.
        with _undoing(lambda: self._abort(begun), lambda: self._abort(self._under_way())):
            begun.append(
                self._ask("beginning the upload of", "create_multipart_upload", **self._store.data())["UploadId"]
            )
            part: dict[str, Any] = {"PartNumber": 1, "Body": b"\n"}
            self._ask("sending a part of", "upload_part", UploadId=begun[0], **part)
            self._ask("listing the parts of", "list_parts", UploadId=begun[0], MaxParts=1)
        return f"an upload was begun below {self._url}, given a part, and aborted; completing one was not tried"

    def _under_way(self) -> list[str]:
        doing = f"listing uploads below {self._url}"
        page = self._store.demand(doing, "list_multipart_uploads", Prefix=self._key)
        return [upload["UploadId"] for upload in page.get("Uploads", []) if upload["Key"] == self._key]

    def _abort(self, upload_ids: Iterable[str]) -> None:
        for upload_id in upload_ids:
            doing = f"aborting the upload {upload_id} of {self._store.url(self._key)}, which else stays,"
            self._store.abort_upload(doing, self._key, upload_id)

    def _obstacle(self) -> str | None:
        """Tell why an object that is put and deleted might stay; `None` when it would be gone."""
        try:
            versioning = self._store.ask("get_bucket_versioning")
        except FAILURES as error:
            return f"the bucket does not tell whether it keeps versions ({describe(error)})"
        if versioning.get("Status"):
            return "the bucket keeps versions, and so what is deleted"
        doing = f"deleting below {self._url}"
        # Whoever overwrites deletes data too, and rights may differ between that and what is ours.
        overwrites = self._store.options.on_existing == "overwrite"
        key = f"{self._store.options.root}.{self._name}" if overwrites else self._key
        try:
            self._store.call(doing, "delete_object", Key=key)
        except TargetError as error:
            if self._deletes:
                raise
            return f"nothing may be deleted there ({describe(error.__cause__ or error)})"
        except FAILURES as error:
            raise translated(doing, error) from error
        return None

    def _condition(self, obstacle: str | None) -> str:
        markers = Markers(self._store)
        seen = (markers.find(incarnation) for incarnation in markers.incarnations())
        known = next((found.marker for found in seen if found is not None and found.marker.created), None)
        if known is not None:
            text = _told(conditional=known.conditional, matching=known.matching is not False)
            return f"{text}, as the step {known.step!r} found out at {known.created}"
        if obstacle:
            return f"whether the store honours If-None-Match is found out by the query's first start: {obstacle}"
        with _undoing(self._delete, lambda: self._abort(self._under_way())):
            conditional = markers.refuses_to_replace(self._key)
            return _told(conditional=conditional, matching=markers.refuses_another_version(self._key))

    def _delete(self) -> None:
        self._ask("removing what else stays,", "delete_object")

    def _ask(self, doing: str, request: str, **arguments: Any) -> Mapping[str, Any]:
        return self._store.demand(f"{doing} {self._store.url(self._key)}", request, Key=self._key, **arguments)


def _told(*, conditional: bool, matching: bool) -> str:
    text = _HONOURED if conditional else _IGNORED
    return text if matching else f"{text}; it does not honour If-Match: let one query at a time take a prefix"


@contextmanager
def _undoing(*undo: Callable[[], None]) -> Iterator[None]:
    """Undo what is done within. After an error that one is raised, and as much undone as can be."""
    try:
        yield
    except BaseException:
        for each in undo:
            with suppress(OutfallError):
                each()
        raise
    for each in undo:
        each()
