"""One object in one attempt: its bytes go to S3 in parts, and nobody sees it before it is completed.

Objects with fewer bytes than a part are uploads of one part: S3 takes a last part of any size.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from outfall.errors import TransientError
from outfall.s3.byte_queue import ByteQueue
from outfall.s3.errors import CHECKSUMS, FAILURES, Answer, classify, code_of
from outfall.s3.failures import describe, piece_lost, translated
from outfall.s3.staged import StagedObject, UploadedPart, encoded
from outfall.s3.store import Store
from outfall.trace_points import reached

T = TypeVar("T")

ID = "outfall-id"
"""The metadata by which an object is known to be ours."""

MOST_PARTS = 9_000
"""S3 takes 10,000 parts; what is written at once may need some more."""
MOST_BYTES = 4 << 40
"""S3's objects end at 5 TiB."""


class Senders:
    """A few threads that send parts. Whoever brings more than they can carry waits, so that memory is bounded."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._slots = threading.BoundedSemaphore(count)
        self._pool: ThreadPoolExecutor | None = None

    def send(self, work: Callable[[], T]) -> Future[T]:
        """Do some work in a thread; with one sender in this one."""
        if self._count == 1:
            return _done(work)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, "outfall-s3")
        self._slots.acquire()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def close(self) -> None:
        """Wait for what is under way, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class Upload:
    """The bytes of one object, brought by one thread."""

    def __init__(self, store: Store, senders: Senders, key: str, refuse_stale: Callable[[str], None]) -> None:
        self._store = store
        self._refuse_stale = refuse_stale
        self._senders = senders
        self._part_size = int(store.options.part_size)
        self._pending = ByteQueue()
        self._sent: list[Future[UploadedPart]] = []
        self._first_unseen = 0
        self._id = uuid.uuid4().hex
        self._upload_id: str | None = None
        self._checksum: str | None = None
        """Which checksum S3 confirms each part with, as its API names it."""
        self._creating = threading.Lock()
        self.key = key
        self.size = 0
        """Bytes brought so far."""

    @property
    def held(self) -> int:
        """Bytes that wait until they are a part; less than one."""
        return self._pending.size

    @property
    def full(self) -> bool:
        """Whether S3 takes little more in this object."""
        return len(self._sent) >= MOST_PARTS or self.size >= MOST_BYTES

    def write(self, buffers: Sequence[pa.Buffer]) -> None:
        """Take bytes, and send each part that is complete. All parts but the last are of one size, as R2 wants it.

        Raises:
            TransientError, TargetError: a part could not be sent, this one or an earlier one.
        """
        for buffer in buffers:
            self.size += self._pending.add([buffer])
            while self._pending.size >= self._part_size:
                self._send(self._pending.take(self._part_size))
        self._raise_failed()

    def copy(self, key: str, size: int) -> None:
        """Take a whole object of the bucket for the next part, within S3. What waits becomes a part before it.

        Args:
            key: its key.
            size: its bytes, at least S3's smallest part unless nothing follows.

        Raises:
            TransientError, TargetError: a part could not be sent, an earlier one too.
        """
        self.end()
        self.size += size
        number = len(self._sent) + 1
        reached("s3: copying part")
        self._sent.append(self._senders.send(lambda: self._copy(number, key)))
        reached("s3: part under way")
        self._raise_failed()

    def end(self) -> None:
        """Send the rest. It is under way when this returns."""
        if self._pending.size:
            self._send(self._pending.take_all())

    def end_inline(self, most: int, rows: int) -> StagedObject | None:
        """Return the object with its bytes if these are few and none are sent; `None` if they are not."""
        if self._sent or self.size > most:
            return None
        return self._staged(rows, content=encoded(self._pending.take_all()))

    def staged(self, rows: int) -> StagedObject:
        """Wait until all parts are safe, and return the object.

        Raises:
            TransientError, TargetError: a part could not be sent.
        """
        parts = tuple(future.result() for future in self._sent)
        return self._staged(rows, upload_id=self._upload_id, parts=parts)

    def abort(self) -> None:
        """Take back what was sent, as far as that is possible; what stays behind is swept. Raises nothing.

        Called when no part is under way any more: one that arrives later would stay.
        """
        if self._upload_id is not None:
            with suppress(*FAILURES):
                self._store.ask("abort_multipart_upload", Key=self.key, UploadId=self._upload_id)

    def _staged(self, rows: int, **how: Any) -> StagedObject:
        return StagedObject(
            bucket=self._store.options.bucket, key=self.key, id=self._id, size=self.size, rows=rows, **how
        )

    def _send(self, body: bytes) -> None:
        number = len(self._sent) + 1
        reached("s3: sending part")
        self._sent.append(self._senders.send(lambda: self._put(number, body)))
        reached("s3: part under way")

    def _put(self, number: int, body: bytes) -> UploadedPart:
        doing = f"uploading part {number} of {self._store.url(self.key)}"
        answer = self._ask_for_part(doing, "upload_part", number, Body=body)
        if self._checksum is not None and self._checksum not in answer:
            # It has no body that would show whether its head was whole, and S3 wants the checksum back.
            answer = self._ask_for_part(doing, "upload_part", number, Body=body)
        return self._confirmed(number, answer)

    def _copy(self, number: int, key: str) -> UploadedPart:
        doing = f"copying {self._store.url(key)} into part {number} of {self._store.url(self.key)}"
        source = {"Bucket": self._store.options.bucket, "Key": key}
        answer = self._ask_for_part(doing, "upload_part_copy", number, CopySource=source)
        return self._confirmed(number, answer["CopyPartResult"])

    def _ask_for_part(self, doing: str, request: str, number: int, **what: Any) -> Mapping[str, Any]:
        upload_id = self._created()
        try:
            return self._store.call(doing, request, Key=self.key, UploadId=upload_id, PartNumber=number, **what)
        except FAILURES as error:
            if classify(error) is not Answer.GONE:
                raise translated(doing, error) from error
            self._refuse_stale(f"{doing} failed: {describe(error)}")
            if code_of(error) == "NoSuchKey" and request == "upload_part_copy":
                raise piece_lost(self._store.url(what["CopySource"]["Key"])) from error
            raise TransientError(
                f"{doing} failed",
                why=f"the upload is gone: a lifecycle rule has aborted it, or somebody did ({describe(error)})",
                do="nothing: the task is tried again, and begins anew",
            ) from error

    def _confirmed(self, number: int, answer: Mapping[str, Any]) -> UploadedPart:
        checksum = {name: value for name, value in answer.items() if name in CHECKSUMS}
        return UploadedPart(number=number, etag=answer["ETag"], checksum=checksum)

    def _created(self) -> str:
        """Begin the upload with its first part."""
        with self._creating:
            if self._upload_id is None:
                doing = f"beginning the upload of {self._store.url(self.key)}"
                arguments = self._store.data() | {"Metadata": {ID: self._id}}
                try:
                    answer = self._store.call(doing, "create_multipart_upload", Key=self.key, **arguments)
                except FAILURES as error:
                    raise translated(doing, error) from error
                self._upload_id = answer["UploadId"]
                if answer.get("ChecksumAlgorithm"):
                    self._checksum = f"Checksum{answer['ChecksumAlgorithm']}"
            return self._upload_id

    def _raise_failed(self) -> None:
        """Raise what has gone wrong in parts that were under way, rather than send more."""
        while self._first_unseen < len(self._sent) and self._sent[self._first_unseen].done():
            self._sent[self._first_unseen].result()
            self._first_unseen += 1


def _done(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(work())
    return future
