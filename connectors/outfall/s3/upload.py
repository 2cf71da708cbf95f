"""The objects of one attempt: their bytes go to S3 in parts, and nobody sees them before they are completed.

They are begun, ended, and handed over together, or taken back together. Objects with fewer bytes than a part are
uploads of one part: S3 takes a last part of any size.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.errors import TransientError, ValueRefusedError
from outfall.retry_log import watch_thread, watcher
from outfall.s3.errors import CHECKSUMS, FAILURES, FailureKind, classify, code_of, describe, piece_lost, translated
from outfall.s3.marker import Markers
from outfall.s3.staged import ID, StagedObject, UploadedPart, encoded
from outfall.s3.store import Store
from outfall.storage.names import AttemptName
from outfall.trace_points import reached

T = TypeVar("T")

MOST_PARTS = 9_000
"""S3 takes 10,000 parts; what is written at once may need some more."""
MOST_BYTES = 4 << 40
"""S3's objects end at 5 TiB."""
_LONGEST_KEY = 1024


class UploadAttempt:
    """What one attempt puts into the bucket. Used by one thread; `senders` are its others."""

    def __init__(self, store: Store, context: WriterInitContext) -> None:
        self.store = store
        self.context = context
        self.senders = Senders(store.options.max_concurrency)
        self.inline_left = int(store.options.inline_bytes)
        """Bytes of small objects that may still go to the driver."""
        self._ended: list[Callable[[], StagedObject]] = []
        self._uploads: list[Upload] = []
        self._in_touch = False
        self._handed_over = False

    def touch(self) -> None:
        """Check, before the first byte, that this is the driver's bucket, and that it is still this driver's.

        Raises:
            UnsharedTargetError, TargetLostError, FencedError: see `Markers.check_task`.
        """
        if not self._in_touch:
            Markers(self.store).check_task(self.context)
            self._in_touch = True

    def begin(self, path: str, suffix: str) -> Upload:
        """Begin an object in a bucket path.

        Raises:
            ValueRefusedError: its key would be too long.
        """
        self.touch()
        name = AttemptName.of(self.context, len(self._uploads), suffix, step_id=self.context.step_id)
        key = self.store.options.root + (f"{path}/{name}" if path else str(name))
        if len(key.encode()) > _LONGEST_KEY:
            raise ValueRefusedError(
                f"the key {key[:100]!r}… is longer than S3's {_LONGEST_KEY} bytes",
                step=self.context.step_id,
                epoch=self.context.epoch,
                do="give a shorter prefix, shorter values in partition_by, or a shorter step_id",
            )
        upload = Upload(self.store, self.senders, key, self.refuse_stale)
        self._uploads.append(upload)
        return upload

    def refuse_stale(self, what: str) -> None:
        """Raise `StaleWriterError` if something of ours is missing since this attempt is an old one."""
        Markers(self.store).refuse_stale(self.context, what)

    def end(self, upload: Upload, rows: int) -> None:
        """Finish an object: hand its bytes over if they are few, else have the rest of them sent."""
        inline = upload.end_inline(self.inline_left, rows)
        if inline is not None:
            self.inline_left -= inline.size
            self._ended.append(lambda: inline)
            return
        upload.end()
        self._ended.append(lambda: upload.staged(rows))
        reached("s3: object ended")

    def hand_over(self) -> list[StagedObject]:
        """Bring all bytes to safety, and return the objects.

        Raises:
            TransientError, TargetError: a part could not be sent.
        """
        staged = [each() for each in self._ended]
        reached("s3: staged")
        self._handed_over = True
        return staged

    def close(self) -> None:
        """End the threads, and abort the uploads of an attempt that failed. What stays behind is cleaned up."""
        if not self._handed_over:
            self.store.stopped.set()
        self.senders.close()
        if not self._handed_over:
            for upload in self._uploads:
                upload.abort()
        self._uploads.clear()
        self._ended.clear()


class Upload:
    """The bytes of one object, brought by one thread."""

    def __init__(self, store: Store, senders: Senders, key: str, refuse_stale: Callable[[str], None]) -> None:
        self._store = store
        self._refuse_stale = refuse_stale
        self._senders = senders
        self._part_size = int(store.options.part_bytes)
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
        """Take back what was sent, as far as that is possible; what stays behind is cleaned up. Raises nothing.

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
            if classify(error) is not FailureKind.GONE:
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
                answer = self._store.demand(doing, "create_multipart_upload", Key=self.key, **arguments)
                self._upload_id = answer["UploadId"]
                if answer.get("ChecksumAlgorithm"):
                    self._checksum = f"Checksum{answer['ChecksumAlgorithm']}"
            return self._upload_id

    def _raise_failed(self) -> None:
        """Raise what has gone wrong in parts that were under way, rather than send more."""
        while self._first_unseen < len(self._sent) and self._sent[self._first_unseen].done():
            self._sent[self._first_unseen].result()
            self._first_unseen += 1


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
            self._pool = ThreadPoolExecutor(self._count, "outfall-s3", watch_thread, (watcher(),))
        self._slots.acquire()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def close(self) -> None:
        """Wait for what is under way, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _done(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(work())
    return future


class ByteQueue:
    """Buffers in a row. None is copied before it is taken."""

    def __init__(self) -> None:
        self._buffers: deque[pa.Buffer] = deque()
        self.size = 0
        """Bytes that wait."""

    def add(self, buffers: Iterable[pa.Buffer]) -> int:
        """Put buffers at the end; return how many bytes they are."""
        before = self.size
        for buffer in buffers:
            self._buffers.append(buffer)
            self.size += buffer.size
        return self.size - before

    def put_back(self, body: bytes) -> None:
        """Put bytes at the front."""
        self._buffers.appendleft(pa.py_buffer(body))
        self.size += len(body)

    def join(self, other: ByteQueue) -> None:
        """Put another queue's bytes at the end."""
        self.add(other._buffers)

    def take(self, size: int) -> bytes:
        """Take so many bytes from the front; fewer if there are not so many."""
        left, taken = min(size, self.size), []
        self.size -= left
        while left:
            buffer = self._buffers.popleft()
            if buffer.size > left:
                self._buffers.appendleft(buffer.slice(left))
                buffer = buffer.slice(0, left)
            taken.append(buffer)
            left -= buffer.size
        return b"".join(taken)

    def take_all(self) -> bytes:
        """Take all of them."""
        return self.take(self.size)

    def read(self) -> bytes:
        """Return all of them, and leave them."""
        return b"".join(self._buffers)
