"""One object in one attempt: its bytes go to S3 in parts, and nobody sees it before it is completed.

Objects with fewer bytes than a part are uploads of one part: S3 takes a last part of any size.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa

from outfall.s3.answers import FAILURES
from outfall.s3.failures import translated
from outfall.s3.staged import StagedObject, UploadedPart, encoded
from outfall.s3.store import Store
from outfall.steps import reached

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

    def send(self, work: Callable[[], UploadedPart]) -> Future[UploadedPart]:
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

    def __init__(self, store: Store, senders: Senders, key: str) -> None:
        self._store = store
        self._senders = senders
        self._part_size = int(store.options.part_size)
        self._pending: list[pa.Buffer] = []
        self._held = 0
        self._sent: list[Future[UploadedPart]] = []
        self._first_unseen = 0
        self._id = uuid.uuid4().hex
        self._upload_id: str | None = None
        self._creating = threading.Lock()
        self.key = key
        self.size = 0
        """Bytes brought so far."""

    @property
    def held(self) -> int:
        """Bytes that wait until they are a part; less than one."""
        return self._held

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
            self._pending.append(buffer)
            self._held += buffer.size
            self.size += buffer.size
            while self._held >= self._part_size:
                self._send(self._cut())
        self._raise_failed()

    def end(self) -> None:
        """Send the rest. It is under way when this returns."""
        if self._held:
            self._send(b"".join(self._pending))
            self._pending, self._held = [], 0

    def end_inline(self, most: int, rows: int) -> StagedObject | None:
        """Return the object with its bytes if these are few and none are sent; `None` if they are not."""
        if self._sent or self.size > most:
            return None
        content = b"".join(self._pending)
        self._pending, self._held = [], 0
        return self._staged(rows, content=encoded(content))

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

    def _cut(self) -> bytes:
        """Take the bytes of one part from those that wait."""
        left, pieces = self._part_size, []
        while left:
            buffer = self._pending[0]
            if buffer.size <= left:
                pieces.append(self._pending.pop(0))
                left -= buffer.size
            else:
                pieces.append(buffer.slice(0, left))
                self._pending[0] = buffer.slice(left)
                left = 0
        self._held -= self._part_size
        return b"".join(pieces)

    def _send(self, body: bytes) -> None:
        number = len(self._sent) + 1
        reached("s3: sending part")
        self._sent.append(self._senders.send(lambda: self._put(number, body)))
        reached("s3: part under way")

    def _put(self, number: int, body: bytes) -> UploadedPart:
        doing = f"uploading part {number} of {self._store.url(self.key)}"
        upload_id = self._created()
        try:
            answer = self._store.call(
                doing, "upload_part", Key=self.key, UploadId=upload_id, PartNumber=number, Body=body
            )
        except FAILURES as error:
            raise translated(doing, error) from error
        checksum = {name: value for name, value in answer.items() if name in _CHECKSUMS}
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
            return self._upload_id

    def _raise_failed(self) -> None:
        """Raise what has gone wrong in parts that were under way, rather than send more."""
        while self._first_unseen < len(self._sent) and self._sent[self._first_unseen].done():
            self._sent[self._first_unseen].result()
            self._first_unseen += 1


_CHECKSUMS = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")


def _done(work: Callable[[], UploadedPart]) -> Future[UploadedPart]:
    future: Future[UploadedPart] = Future()
    future.set_result(work())
    return future
