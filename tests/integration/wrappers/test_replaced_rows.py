"""Each wrapper around each way of writing by key: the newest row of a key stays, or the combination is refused.

Three epochs replace and delete rows of the same keys, from other tasks each time, and a drain follows. OpenSearch and
Kafka are the tests' own models, DynamoDB is moto, and the HTTP server is a stub.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import SupportsBufferedRows, SupportsTarget
from outfall.capability_checks import capabilities_of, resolve
from outfall.errors import OutfallError
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.values import rows_to_batch
from outfall.wrappers import BatchingSink, DeadLetteringSink, ExactlyOnceSink, FanOutSink
from tests.combinations import BATCHES, DEAD_LETTERS, FAN_OUT, HELD, ONCE, REFUSED
from tests.integration.wrappers.keyed_targets import TARGETS, Servers, Target
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.warehouse import Warehouse

pytestmark = pytest.mark.thorough

WRAPPERS: dict[str, Callable[[Any, str], Any]] = {
    FAN_OUT: lambda sink, name: FanOutSink(out=sink, other=NamedStagingSink(Warehouse(), name)),
    BATCHES: lambda sink, name: BatchingSink(sink, batch_size=2),
    HELD: lambda sink, name: BatchingSink(sink, batch_size=3, across_epochs=True),
    ONCE: lambda sink, name: ExactlyOnceSink(sink, offset="n", source_partition="source", parts=2),
    DEAD_LETTERS: lambda sink, name: DeadLetteringSink(sink, NamedStagingSink(Warehouse(), name)),
}
"""Each around a sink, with the name of what stands beside it."""
ALONE = [(), *((name,) for name in WRAPPERS)]
NESTED = [(outer, inner) for outer in WRAPPERS for inner in WRAPPERS]
NEIGHBOURS = [(FAN_OUT, BATCHES), (FAN_OUT, HELD), (BATCHES, ONCE), (ONCE, FAN_OUT), (DEAD_LETTERS, ONCE)]
DROPPED = {"upsert": ("gone", "op"), "marker": ("op",), "delete": ("gone", "op"), "changes": ("gone",)}
"""The columns that a mode does not take."""
NEWEST = {"upsert": {"a": "a2", "b": "b2"}, "marker": {"b": "b2"}, "delete": {}, "changes": {"b": "b2"}}
"""What the epochs leave of the keys `a` and `b`."""


def rows(epoch: int, mode: str) -> list[dict[str, Any]]:
    """Two keys are replaced in each epoch, and the last one deletes a key where the mode can."""
    found = []
    for number, key in enumerate("ab"):
        gone = epoch == 2 and key == "a"
        row = {"id": key, "n": epoch * 10 + number, "source": f"{number}", "text": f"{key}{epoch}"}
        row |= {"gone": gone, "op": "delete" if gone else "update"}
        found.append({name: value for name, value in row.items() if name not in DROPPED[mode]})
    return found


def run(make: Callable[[], Any], mode: str) -> OutfallError | None:
    """Run the epochs; return the error with which the combination is refused at its construction."""
    try:
        make()
    except OutfallError as refused:
        return refused
    recovery = MemoryRecoveryConfig()
    for epoch in range(3):
        sink = make()
        given = rows(epoch, mode)
        if SupportsTarget in capabilities_of(sink):
            sink.check_schema(rows_to_batch(given).schema)
        # Each key comes from another task than before.
        tasks: list[Any] = [[row] for row in (given if epoch % 2 else given[::-1])]
        if resolve(sink).fixed:
            tasks = [[(row["source"], row) for row in task] for task in tasks]
        LocalDriver(sink, recovery).run_epoch(epoch, tasks)
    if SupportsBufferedRows in capabilities_of(make()):
        LocalDriver(make(), recovery).drain()
    return None


def expected(wrappers: tuple[str, ...], reports: bool) -> str | None:
    """Return the word of the table for the innermost wrapper that refuses what is in it."""
    for wrapper in reversed(wrappers):
        if wrapper == HELD:
            return "keys"
        if wrapper == DEAD_LETTERS and not reports:
            return "hands"
        # What the wrapper itself reports.
        reports = wrapper == ONCE or (wrapper == BATCHES and reports)
    return None


@pytest.fixture(autouse=True)
def _nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine dies here."""
    monkeypatch.setattr("os.fsync", lambda file: None)


CELLS = [
    *((name, mode, wrappers) for name, kind in TARGETS.items() for mode in kind.modes for wrappers in ALONE),
    # Wrappers do not ask for the kind of a sink, so that all pairs need one kind only.
    *(("redis", "marker", wrappers) for wrappers in NESTED),
    *((name, "changes", wrappers) for name in ("postgres", "mysql") for wrappers in NEIGHBOURS),
    *((name, "marker", wrappers) for name in ("iceberg", "delta") for wrappers in NEIGHBOURS[:2]),
    *((name, "upsert", wrappers) for name in ("dynamodb", "opensearch", "put", "kafka") for wrappers in NEIGHBOURS[:3]),
]


@pytest.mark.parametrize(
    ("name", "mode", "wrappers"), CELLS, ids=[f"{name}-{mode}-{' ( '.join(chain)}" for name, mode, chain in CELLS]
)
def test_the_newest_row_of_a_key_stays(
    name: str, mode: str, wrappers: tuple[str, ...], servers: Servers, tmp_path: Path
) -> None:
    target: Target = TARGETS[name](servers.get(name), tmp_path, mode)
    before = target.read()

    def make() -> Any:
        sink = target.sink()
        for level, wrapper in enumerate(reversed(wrappers)):
            sink = WRAPPERS[wrapper](sink, f"other {level}")
        return sink

    refused = run(make, mode)
    word = expected(wrappers, target.reports)
    if word is None:
        assert refused is None
        others = {key: text for key, text in before.items() if key not in ("a", "b")}
        assert target.read() == others | NEWEST[mode]
    else:
        kind, text = REFUSED[word]
        assert isinstance(refused, kind)
        assert text in str(refused)
        assert target.read() == before
