"""The record of a replay: all selected dead letters, and the rows of the last selection.

The record is the state of a separate step, `replay-letters` for the writing step `replay`. Each epoch of it selects
dead letters. A completed selection is final, also after a crash. Therefore each attempt of the writing epoch has the
same rows, and a dead letter is never selected again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from outfall.capabilities import SupportsStateSerializer, SupportsTarget
from outfall.capability_checks import resolve
from outfall.errors import SerializationError
from outfall.protocol.clock import SystemClock
from outfall.protocol.journal import Journal
from outfall.protocol.states import load_states
from outfall.recovery.log import RecoveryConfig
from outfall.replay.dead_letters import ID_BYTES
from outfall.serde import SimpleVersionedSerializer, parse_json
from outfall.sinks import FixedPartitionedSink, StatefulSinkPartition
from outfall.values import arrow_stream

_PART = "letters"


@dataclass(frozen=True)
class Choice:
    """Dead letters that are written in one epoch."""

    ids: Sequence[bytes]
    rows: pa.RecordBatch


@dataclass(frozen=True)
class ReplayRecord:
    """All dead letters selected so far."""

    batch: int = -1
    """Number of the last selection, which is its batch in the writing step; -1 before the first."""
    ids: Counter[bytes] = field(default_factory=Counter)
    """Id → number of selections. Equal dead letters are counted separately."""
    rows: pa.RecordBatch | None = None
    """Rows of the last selection; `None` after they are written."""

    def with_choice(self, choice: Choice | None) -> ReplayRecord:
        """Return the record with a new selection, or without rows for `None`."""
        if choice is None:
            return ReplayRecord(self.batch, self.ids)
        return ReplayRecord(self.batch + 1, self.ids + Counter(choice.ids), choice.rows)


def dead_letters_step(step_id: str) -> str:
    """Return the id of the selecting step for a writing step."""
    return f"{step_id}-letters"


def read_record(recovery: RecoveryConfig, step_id: str) -> ReplayRecord:
    """Read the record from the log of the selecting step. Writes nothing.

    Raises `TransientError` or `RecordError` if the log cannot be read.
    """
    name = dead_letters_step(step_id)
    with closing(recovery.open(name)) as log:
        view = Journal(log, name, SystemClock()).read()
        return record_in(load_states(resolve(RecordSink(step_id)), view.states, log))


def record_in(states: Mapping[str, Any]) -> ReplayRecord:
    """Return the record from the states of the selecting step."""
    found: ReplayRecord = states.get(_PART, ReplayRecord())
    return found


class RecordSink(
    FixedPartitionedSink[Choice | None, ReplayRecord],
    SupportsTarget[ReplayRecord],
    SupportsStateSerializer[ReplayRecord],
):
    """Stores its input in its state and has no target. Receives one item per epoch. `step_id` is the writing step."""

    def __init__(self, step_id: str) -> None:
        self._step_id = step_id

    def list_parts(self) -> list[str]:
        return [_PART]

    def build_part(self, step_id: str, for_part: str, resume_state: ReplayRecord | None) -> _RecordPartition:
        return _RecordPartition(resume_state or ReplayRecord())

    def state_serializer(self) -> SimpleVersionedSerializer[ReplayRecord]:
        return _RecordSerializer()

    def kind(self) -> str:
        return "replay-letters"

    def target(self) -> str:
        return f"step {self._step_id}"


class _RecordPartition(StatefulSinkPartition[Choice | None, ReplayRecord]):
    def __init__(self, record: ReplayRecord) -> None:
        self._record = record

    def write_batch(self, values: list[Choice | None]) -> None:
        for choice in values:
            self._record = self._record.with_choice(choice)

    def snapshot(self) -> ReplayRecord:
        return self._record

    def close(self) -> None:
        pass


class _RecordSerializer(SimpleVersionedSerializer[ReplayRecord]):
    """A line of JSON, the concatenated ids, and the rows in Arrow's stream format."""

    def serialize(self, value: ReplayRecord) -> bytes:
        ids = b"".join(sorted(value.ids.elements()))
        rows = b"" if value.rows is None else arrow_stream(value.rows)
        return json.dumps({"batch": value.batch, "ids": len(ids), "rows": len(rows)}).encode() + b"\n" + ids + rows

    def deserialize(self, version: int, data: bytes) -> ReplayRecord:
        self.check_version(version)
        head, _, body = data.partition(b"\n")
        try:
            sizes = parse_json(head)
            if len(body) != sizes["ids"] + sizes["rows"] or sizes["ids"] % ID_BYTES:
                raise ValueError(f"its size is {len(body)} bytes")
            ids = body[: sizes["ids"]]
            rows = _from_stream(body[sizes["ids"] :]) if sizes["rows"] else None
            found = Counter(ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))
            return ReplayRecord(int(sizes["batch"]), found, rows)
        except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise SerializationError(
                "the record of replayed dead letters is damaged", why=str(error), do="restore the recovery data"
            ) from error


def _from_stream(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
