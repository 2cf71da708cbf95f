"""The objects of one attempt: begun, ended, and handed over together, or taken back together."""

from __future__ import annotations

from collections.abc import Callable

from outfall.capabilities import WriterInitContext
from outfall.errors import ValueRefusedError
from outfall.s3.marker import Markers
from outfall.s3.staged import StagedObject
from outfall.s3.store import Store
from outfall.s3.upload import Senders, Upload
from outfall.storage.names import AttemptName
from outfall.trace_points import reached

_LONGEST_KEY = 1024


class Attempt:
    """What one attempt puts into the bucket. Used by one thread; `senders` are its others."""

    def __init__(self, store: Store, context: WriterInitContext) -> None:
        self.store = store
        self.context = context
        self.senders = Senders(store.options.max_concurrency)
        self.inline_left = int(store.options.inline_size)
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
        """End the threads, and abort the uploads of an attempt that failed. What stays behind is swept."""
        if not self._handed_over:
            self.store.stopped.set()
        self.senders.close()
        if not self._handed_over:
            for upload in self._uploads:
                upload.abort()
        self._uploads.clear()
        self._ended.clear()
