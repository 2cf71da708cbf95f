"""The entries by the first rules: any other field was rejected. Never changed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Blob(_Strict):
    name: str
    length: int
    sha256: str


class _Held(_Strict):
    rows: int
    oldest: datetime | None


class _Value(_Strict):
    version: int
    text: str | None
    base64: str | None
    blob: _Blob | None
    held: _Held | None


class _Committable(_Strict):
    value: _Value
    worker_index: int
    part: str | None


class _Child(_Strict):
    sink: str
    target: str | None
    since: int


class _Entry(_Strict):
    format: Literal[1]
    step: str
    incarnation: str
    time: datetime


class _Begin(_Entry):
    kind: Literal["begin"]
    epoch: int | None
    outfall: str
    sink: str
    target: str | None
    query_id: str | None
    driver: str
    nonce: str
    bases: dict[str, _Value]
    writer_states: list[_Value]
    drain: bool
    drains: int
    children: dict[str, _Child]


class _Prepared(_Entry):
    kind: Literal["prepared"]
    epoch: int
    generation: int
    query_id: str | None
    states: dict[str, _Value]
    writer_states: list[_Value]
    committables: list[_Committable]
    counts: dict[str, int]
    seconds: float


class _Committing(_Entry):
    kind: Literal["committing"]
    epoch: int
    generation: int


class _Committed(_Entry):
    kind: Literal["committed"]
    epoch: int
    generation: int
    child: str


class _Completed(_Entry):
    kind: Literal["completed"]
    epoch: int
    generation: int
    prepared: int
    counts: dict[str, int]
    seconds: float
    task_seconds: float
    guarantee: str
    drain: bool
    drains: int
    held_since: datetime | None
    published: dict[str, int]
    totals: dict[str, int]


class _Abandoned(_Entry):
    kind: Literal["abandoned"]
    epoch: int
    generation: int
    reason: str


class _Skipped(_Entry):
    kind: Literal["skipped"]
    epoch: int
    drains: int
    counts: dict[str, int]


class _Moved(_Entry):
    kind: Literal["moved"]
    to: str


class _Repaired(_Entry):
    kind: Literal["repaired"]
    checkpoint: str
    files: list[str]
    aside: str
    done: bool


FORMER: TypeAdapter[_Entry] = TypeAdapter(
    Annotated[
        _Begin | _Prepared | _Committing | _Committed | _Completed | _Abandoned | _Skipped | _Moved | _Repaired,
        Field(discriminator="kind"),
    ]
)
