"""Gathers the rows of several epochs, and composes them into a large object at a bound.

```
epoch n     rows ──> bytes ──> hidden pieces, written by the task; small remainders are stored in the state
state       names the pieces, until the epoch that composes them is completed
bound       one attempt copies the pieces into a multipart upload and returns it like any other object
clean-up    deletes pieces of older generations that no recorded state names
```
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from operator import attrgetter

import pyarrow as pa

from outfall.formats import suffix
from outfall.formats.partition_paths import PartitionPaths
from outfall.formats.stream import EncodedStream
from outfall.s3.options import SMALLEST_PART
from outfall.s3.rolling.buffered_object import BufferedObject, Form, batches_of, copied, merged
from outfall.s3.rolling.pieces import WHOLE, Pieces, WriterState
from outfall.s3.staged import StagedObject
from outfall.s3.upload import ByteQueue, Ended, Upload, UploadAttempt
from outfall.storage.rolling import RollBounds
from outfall.storage.writer import AttemptWriter
from outfall.trace_points import reached

log = logging.getLogger(__name__)


class RollingWriter(AttemptWriter[str, StagedObject]):
    """Buffers one future object per partition directory, and restores recorded states."""

    def __init__(
        self,
        attempt: UploadAttempt,
        buckets: PartitionPaths,
        rolling: RollBounds,
        recovered: Sequence[WriterState],
    ) -> None:
        super().__init__(buckets.split)
        self._attempt = attempt
        self._options = attempt.store.options
        self._rolling = rolling
        self._part_size = int(self._options.part_bytes)
        self._pieces = Pieces(attempt)
        self._forms: list[tuple[pa.Schema, Form]] = []
        self._growing: dict[str, BufferedObject] = {}
        self._retired: list[BufferedObject] = []
        """Objects that receive no more rows and are composed at the end of the epoch."""
        self._ended: list[Ended] = []
        self._ratio = min((state.ratio for state in recovered if state.ratio is not None), default=None)
        for state in recovered:
            for held in state.objects:
                self._restore(BufferedObject.restored(held))

    def snapshot_state(self, epoch: int) -> Sequence[WriterState]:
        """Return all buffered rows as one state; no state if rows are not buffered."""
        objects = tuple(growing.held() for growing in self._growing.values())
        return (WriterState(objects=objects, ratio=self._ratio),) if objects or self._rolling.bounded else ()

    def _release(self, *, failed: bool) -> None:
        self._growing.clear()
        self._retired.clear()
        self._attempt.close(failed=failed)

    def _restore(self, growing: BufferedObject) -> None:
        """Restore an object of one writer. If there were more writers, objects that cannot be joined are closed."""
        other = self._growing.setdefault(growing.path, growing)
        if other is growing:
            return
        if other.joins(growing) and self._rolling.fits(other.rows + growing.rows):
            other.join(growing)
        else:
            self._retired.append(growing)

    def _write(self, key: str, rows: pa.RecordBatch) -> None:
        form = self._form(rows.schema)
        while rows.num_rows:
            growing = self._open(key, form)
            some = rows.slice(0, self._rolling.room(growing.rows))
            rows = rows.slice(some.num_rows)
            self._count(growing.write(some, self._options))
            if self._due(growing):
                self._compose(self._growing.pop(key))
            else:
                self._put_whole(growing)

    def _form(self, schema: pa.Schema) -> Form:
        """Return the form for a schema. The latest comes first, because batches of an epoch have the same schema."""
        for known, form in self._forms:
            if known.equals(schema):
                return form
        form = Form.of(self._options, schema)
        self._forms = [(schema, form), *self._forms[:7]]
        return form

    def _open(self, path: str, form: Form) -> BufferedObject:
        found = self._growing.get(path)
        if found is not None and found.form == form and (self._rolling.room(found.rows) != 0):
            return found
        if found is not None:
            self._retired.append(found)
        growing = self._growing[path] = BufferedObject(path, form, self._rolling.clock())
        return growing

    def flush(self, end_of_input: bool) -> None:
        """Compose objects that have reached a bound; at the end of the input, all buffered rows."""
        with self._all_or_broken():
            due, self._retired = self._retired, []
            for path, growing in list(self._growing.items()):
                if end_of_input or not self._rolling.bounded or self._due(growing):
                    due.append(self._growing.pop(path))
            for growing in due:
                self._compose(growing)

    def _finish(self) -> list[StagedObject]:
        for growing in sorted(self._growing.values(), key=lambda growing: growing.waiting.size):
            self._keep(growing, inline=True)
        self._pieces.wait()
        reached("s3: pieces put")
        return self._attempt.hand_over(self._ended)

    def _bound_held(self) -> None:
        growing, memory = self._growing.values(), attrgetter("memory")
        while len(growing) > 1 and sum(map(memory, growing)) > self._attempt.held_bytes:
            self._keep(max(growing, key=memory), inline=False)

    def _count(self, made: int) -> None:
        """Count bytes in the epoch that encodes them, also if their object is composed later."""
        self._attempt.context.metrics.add("bytes", made)

    # --- bounds

    def _due(self, growing: BufferedObject) -> bool:
        """Return whether an object has reached a bound."""
        if self._rolling.due(0, growing.since, growing.rows):
            return True
        if not self._is_large(growing):
            return False
        # Check again with the rows in memory encoded, because most become smaller.
        self._count(growing.finish())
        if self._ratio is None and growing.form.kind == "arrow" and self._is_large(growing):
            self._learn(growing, sum(buffer.size for buffers in self._file(growing) for buffer in buffers))
        return self._is_large(growing)

    def _is_large(self, growing: BufferedObject) -> bool:
        """Return whether an object has reached a bound of its size."""
        size = growing.size
        if self._ratio is not None and growing.form.kind == "arrow":
            size = int(growing.unencoded * self._ratio)
        return self._rolling.full(size)

    def _learn(self, growing: BufferedObject, size: int) -> None:
        """Remember the ratio of a file's size to that of its rows, to estimate the sizes of later files."""
        self._ratio = size / max(1, growing.unencoded)

    # --- pieces

    def _put_whole(self, growing: BufferedObject) -> None:
        """Write buffered bytes as whole parts if there are enough, together with the small pieces before them."""
        if growing.waiting.size >= self._part_size:
            self._refill(growing)

    def _refill(self, growing: BufferedObject) -> None:
        """Write small pieces and buffered bytes as whole parts, with one piece in memory at a time."""
        waiting, growing.waiting = growing.waiting, ByteQueue()
        for piece in growing.take_small():
            growing.waiting.add([pa.py_buffer(self._pieces.read(piece))])
            self._put_parts(growing)
        growing.waiting.join(waiting)
        self._put_parts(growing)

    def _put_parts(self, growing: BufferedObject) -> None:
        while growing.waiting.size >= self._part_size:
            growing.pieces.append(self._pieces.put(growing.waiting.take(self._part_size), WHOLE))

    def _keep(self, growing: BufferedObject, *, inline: bool) -> None:
        """Write all buffered bytes as a piece; or keep them for the state if they are few."""
        self._count(growing.finish())
        if growing.waiting.size + sum(piece.size for piece in growing.small) >= self._part_size:
            self._refill(growing)
        if inline and growing.waiting.size <= self._attempt.inline_left:
            self._attempt.inline_left -= growing.waiting.size
        elif growing.waiting.size:
            count, level = merged([piece.level for piece in growing.small])
            self._read_back(growing, count)
            growing.pieces.append(self._pieces.put(growing.waiting.take_all(), level))

    def _read_back(self, growing: BufferedObject, count: int) -> None:
        """Read the last small pieces, which together are less than a part, back into the buffer.

        The clean-up deletes the pieces after the epoch is completed.
        """
        for _ in range(count):
            growing.waiting.put_back(self._pieces.read(growing.pieces.pop()))

    # --- objects

    def _compose(self, growing: BufferedObject) -> None:
        """Compose all rows of an object into an upload of this attempt."""
        self._count(growing.finish())
        reached("s3: composing")
        ending = suffix(self._options) if growing.form.kind == "arrow" else growing.form.suffix
        if growing.form.suffix != suffix(self._options):
            log.warning(
                "step %s: epoch %d wrote %d rows into a *%s object. They were buffered for a *%s object, and the sink"
                " now writes *%s",
                *(self._attempt.context.step_id, self._attempt.context.epoch, growing.rows),
                *(ending, growing.form.suffix, suffix(self._options)),
            )
        upload = self._attempt.begin(growing.path, ending)
        if growing.form.kind == "arrow":
            self._encode(growing, upload)
        else:
            self._join(growing, upload)
        self._ended.append(self._attempt.end(upload, growing.rows))
        reached("s3: composed")

    def _join(self, growing: BufferedObject, upload: Upload) -> None:
        sizes = [piece.size for piece in growing.pieces]
        for piece, copy in zip(growing.pieces, copied(sizes, self._part_size, SMALLEST_PART), strict=True):
            if copy:
                upload.copy(self._pieces.key(piece), piece.size)
            else:
                upload.write([pa.py_buffer(self._pieces.read(piece))])
        upload.write([pa.py_buffer(growing.waiting.take_all())])

    def _encode(self, growing: BufferedObject, upload: Upload) -> None:
        for buffers in self._file(growing):
            upload.write(buffers)
        # Files composed for another reason are small, and the ratio of a small file is worse.
        if self._is_large(growing) or self._rolling.full(upload.size):
            self._learn(growing, upload.size)

    def _file(self, growing: BufferedObject) -> Iterator[list[pa.Buffer]]:
        """Encode all rows of an object as a file. Its pieces are read one at a time."""
        stream = EncodedStream(self._options)
        for batch in batches_of(self._bodies(growing)):
            yield stream.encode(batch)
        yield stream.finish()

    def _bodies(self, growing: BufferedObject) -> Iterator[bytes]:
        for piece in growing.pieces:
            yield self._pieces.read(piece)
        yield growing.waiting.read()
