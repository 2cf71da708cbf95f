"""The objects of one attempt: uploads whose parts are sent to S3, and which are invisible until they are completed.

All objects of an attempt are returned together or aborted together. An object smaller than a part is an upload of one
part, because S3 accepts a last part of any size.
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
from outfall.s3.record import ObjectRecords
from outfall.s3.staged import ID, StagedObject, UploadedPart, encoded
from outfall.s3.store import Store
from outfall.storage.names import AttemptName
from outfall.trace_points import reached

T = TypeVar("T")
Ended = Callable[[], StagedObject]
"""Waits until an ended object is durable, and returns it. Raises the errors of `Upload.staged`."""

MOST_PARTS = 9_000
"""S3 allows 10,000 parts. The difference is a reserve for the batch that is being written."""
MOST_BYTES = 4 << 40
"""S3 allows 5 TiB per object."""
_LONGEST_KEY = 1024


class UploadAttempt:
    """The uploads of one attempt. Used by one thread; `senders` has the others."""

    def __init__(self, store: Store, context: WriterInitContext) -> None:
        self.store = store
        self.context = context
        self.senders = Senders(store.options.max_concurrency)
        self.inline_left = int(store.options.inline_bytes)
        """The remaining bytes of small objects that may be returned to the driver."""
        self._uploads: list[Upload] = []
        self._in_touch = False

    @property
    def held_bytes(self) -> int:
        """The bytes that all open objects may buffer together, without parts in progress."""
        return int(self.store.options.part_bytes) * self.store.options.max_concurrency

    def touch(self) -> None:
        """Check before the first byte that the task reaches the driver's bucket and the driver is still the last one.

        Raises the errors of `ObjectRecords.check_task`.
        """
        if not self._in_touch:
            ObjectRecords(self.store).check_task(self.context)
            self._in_touch = True

    def begin(self, path: str, suffix: str) -> Upload:
        """Begin an object in a partition directory. Raises `ValueRefusedError` if its key would be too long."""
        self.touch()
        name = AttemptName.of(self.context, len(self._uploads), suffix, step_id=self.context.step_id)
        key = self.store.options.root + (f"{path}/{name}" if path else str(name))
        if len(key.encode()) > _LONGEST_KEY:
            raise ValueRefusedError(
                f"the key of an object below {self.store.options.root[:100]!r} is longer than S3's {_LONGEST_KEY}"
                " bytes",
                step=self.context.step_id,
                epoch=self.context.epoch,
                do="use a shorter prefix, shorter values in partition_by, or a shorter step_id",
            )
        upload = Upload(self.store, self.senders, key, self.refuse_stale)
        self._uploads.append(upload)
        return upload

    def refuse_stale(self, what: str) -> None:
        """Raise `StaleWriterError` if an upload or a piece is missing because this attempt is stale."""
        ObjectRecords(self.store).refuse_stale(self.context, what)

    def end(self, upload: Upload, rows: int) -> Ended:
        """Finish an object: keep its bytes for the driver if they are few, otherwise send the rest."""
        inline = upload.end_inline(self.inline_left, rows)
        if inline is not None:
            self.inline_left -= inline.size
            return lambda: inline
        upload.end()
        reached("s3: object ended")
        return lambda: upload.staged(rows)

    def hand_over(self, ended: Iterable[Ended]) -> list[StagedObject]:
        """Wait until all bytes are durable, and return the objects. Raises the errors of `Upload.staged`."""
        staged = [each() for each in ended]
        reached("s3: staged")
        return staged

    def close(self, *, failed: bool) -> None:
        """End the threads, and abort the uploads of a failed attempt. The clean-up aborts those that remain."""
        if failed:
            self.store.stopped.set()
        self.senders.close()
        for upload in self._uploads if failed else ():
            upload.abort()


class Upload:
    """The upload of one object, whose bytes come from one thread."""

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
        """The name in S3's API of the checksum that S3 confirms for each part."""
        self._creating = threading.Lock()
        self.key = key
        self.size = 0
        """Bytes added so far."""

    @property
    def held(self) -> int:
        """Buffered bytes, less than a part."""
        return self._pending.size

    @property
    def full(self) -> bool:
        """Whether the object is close to S3's limits."""
        return len(self._sent) >= MOST_PARTS or self.size >= MOST_BYTES

    def write(self, buffers: Sequence[pa.Buffer]) -> None:
        """Add bytes, and send each complete part. All parts except the last have the same size, as R2 requires.

        Raises `TransientError` if this part or an earlier one could not be sent, and `TargetError` if S3 rejected it.
        """
        for buffer in buffers:
            self.size += self._pending.add([buffer])
            while self._pending.size >= self._part_size:
                self._send(self._pending.take(self._part_size))
        self._raise_failed()

    def copy(self, key: str, size: int) -> None:
        """Copy an object of the bucket as the next part, within S3. Buffered bytes become a part before it.

        Its `size` in bytes is at least S3's smallest part unless it is the last part. Raises the errors of `write` for
        earlier parts.
        """
        self.end()
        self.size += size
        number = len(self._sent) + 1
        reached("s3: copying part")
        self._sent.append(self._senders.send(lambda: self._copy(number, key)))
        reached("s3: part under way")
        self._raise_failed()

    def end(self) -> None:
        """Begin to send the rest."""
        if self._pending.size:
            self._send(self._pending.take_all())

    def end_inline(self, most: int, rows: int) -> StagedObject | None:
        """Return the object with its bytes if there are at most `most` and none were sent; otherwise `None`."""
        if self._sent or self.size > most:
            return None
        return self._staged(rows, content=encoded(self._pending.take_all()))

    def staged(self, rows: int) -> StagedObject:
        """Wait until all parts are durable, and return the object. Raises the errors of `write`."""
        parts = tuple(future.result() for future in self._sent)
        return self._staged(rows, upload_id=self._upload_id, parts=parts)

    def abort(self) -> None:
        """Abort the upload if possible; otherwise the clean-up does. Raises nothing.

        Called when no part is in progress, because a part that arrives later would remain.
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
            # The response has no body that shows whether its headers are complete, and S3 requires the checksum later.
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
                why=f"the upload does not exist: a lifecycle rule or a user has aborted it ({describe(error)})",
                do="if the query has failed, start it again: no rows are lost. The next attempt begins a new upload",
            ) from error

    def _confirmed(self, number: int, answer: Mapping[str, Any]) -> UploadedPart:
        checksum = {name: value for name, value in answer.items() if name in CHECKSUMS}
        return UploadedPart(number=number, etag=answer["ETag"], checksum=checksum)

    def _created(self) -> str:
        """Create the upload with its first part; return its id."""
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
        """Raise errors of parts that were sent before sending more."""
        while self._first_unseen < len(self._sent) and self._sent[self._first_unseen].done():
            self._sent[self._first_unseen].result()
            self._first_unseen += 1


class Senders:
    """A few threads that send parts. `send` blocks while all are busy, which bounds the memory."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._slots = threading.BoundedSemaphore(count)
        self._pool: ThreadPoolExecutor | None = None

    def send(self, work: Callable[[], T]) -> Future[T]:
        """Run a function in a thread; with one sender, in the calling thread."""
        if self._count == 1:
            return _done(work)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, "outfall-s3", watch_thread, (watcher(),))
        self._slots.acquire()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def close(self) -> None:
        """Wait for running work, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _done(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(work())
    return future


class ByteQueue:
    """A queue of buffers, which are not copied before they are taken."""

    def __init__(self) -> None:
        self._buffers: deque[pa.Buffer] = deque()
        self.size = 0
        """The number of bytes in the queue."""

    def add(self, buffers: Iterable[pa.Buffer]) -> int:
        """Add buffers at the end; return their size in bytes."""
        before = self.size
        for buffer in buffers:
            self._buffers.append(buffer)
            self.size += buffer.size
        return self.size - before

    def put_back(self, body: bytes) -> None:
        """Add bytes at the front."""
        self._buffers.appendleft(pa.py_buffer(body))
        self.size += len(body)

    def join(self, other: ByteQueue) -> None:
        """Add another queue's bytes at the end."""
        self.add(other._buffers)

    def take(self, size: int) -> bytes:
        """Remove and return at most `size` bytes from the front."""
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
        """Remove and return all bytes."""
        return self.take(self.size)

    def read(self) -> bytes:
        """Return all bytes without removing them."""
        return b"".join(self._buffers)
