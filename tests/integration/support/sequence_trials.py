"""What a sink with `sequence_column` must do: the newest change of a key wins, in any epoch, task and run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from outfall.errors import StaleWriterError, ValueRefusedError
from outfall.testing import LocalDriver, MemoryRecoveryConfig

MakeSink = Callable[..., Any]
"""Makes a sink with the key `id` by options."""
Read = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Returns the rows that readers see, by the text of their key."""


def sequences_order_all_rows(make_sink: MakeSink, read: Read) -> None:
    """Write the changes of some keys in a random order, in several epochs of two steps, some of them twice."""
    drawn = random.Random(54)
    changes = [
        {"id": str(drawn.randrange(6)), "seq": _sequence(offset), "text": f"ä {offset}", "gone": drawn.random() < 0.3}
        for offset in range(60)
    ]
    newest = {change["id"]: change for change in changes}
    assert {change["gone"] for change in newest.values()} == {True, False}
    arriving = changes + drawn.sample(changes, 20)
    drawn.shuffle(arriving)
    sink = make_sink(sequence_column="seq", delete_marker="gone")
    stream, replay = MemoryRecoveryConfig(), MemoryRecoveryConfig()
    stale = 0
    for epoch in range(4):
        for step, recovery in enumerate((stream, replay)):
            rows = arriving[10 * (2 * epoch + step) :][:10]
            stale += _write(sink, rows[::2], rows[1::2], epoch=epoch, recovery=recovery).get("changes_stale", 0)
    assert {key: row["text"] for key, row in read().items()} == {
        key: change["text"] for key, change in newest.items() if not change["gone"]
    }
    assert stale > 10


def rows_with_a_sequence_are_newer_than_all_without(make_sink: MakeSink, read: Read) -> None:
    """Begin to use sequences over existing rows, and do not go back."""
    _write(make_sink(), [{"id": "a", "seq": 9, "text": "plain"}, {"id": "b", "seq": 9, "text": "plain"}])
    _write(make_sink(sequence_column="seq"), [{"id": "a", "seq": 1, "text": "sequenced"}])
    assert {key: row["text"] for key, row in read().items()} == {"a": "sequenced", "b": "plain"}
    with pytest.raises(StaleWriterError, match="set sequence_column"):
        _write(make_sink(), [{"id": "a", "seq": 10, "text": "plain"}])
    assert {key: row["text"] for key, row in read().items()} == {"a": "sequenced", "b": "plain"}
    with pytest.raises(ValueRefusedError, match="the sequence, in column 'seq', is NULL"):
        _write(make_sink(sequence_column="seq"), [{"id": "b", "seq": None, "text": "c"}, {"id": "a", "seq": 5}])


TRIALS = [sequences_order_all_rows, rows_with_a_sequence_are_newer_than_all_without]


def _sequence(offset: int) -> Decimal:
    return Decimal(10**28 + offset * 10**9)


def _write(sink: Any, *tasks: list[Any], epoch: int = 0, recovery: Any = None) -> Mapping[str, int]:
    return LocalDriver(sink, recovery or MemoryRecoveryConfig()).run_epoch(epoch, list(tasks)).counts
