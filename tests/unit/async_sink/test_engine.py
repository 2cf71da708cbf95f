"""The asynchronous base under the engine: held rows and their drain, dead letters in another sink."""

from __future__ import annotations

import json
from collections.abc import Sequence

from outfall.async_sink import RequestOutcome
from outfall.capability_checks import resolve
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.wrappers import DeadLetteringSink
from tests.unit.support.async_destination import Answer, Destination, TextSink


def sent(destination: Destination) -> list[str]:
    return [entry for request in destination.requests for entry in request]


def test_rows_that_do_not_fill_a_request_are_held_counted_and_drained() -> None:
    destination, recovery = Destination(), MemoryRecoveryConfig()
    sink = TextSink(destination, across_epochs=True, max_batch_size=4)
    LocalDriver(sink, recovery).run_epoch(0, [["a", "b", "c", "d", "e"], ["f"]])
    assert sent(destination) == ["a", "b", "c", "d"]
    assert history(recovery)[-1].counts["rows_held"] == 2
    # Fewer tasks than before: one state is taken over, and the other is carried forward.
    LocalDriver(sink, recovery).run_epoch(1, [["g"]])
    assert history(recovery)[-1].counts["rows_held"] == 3
    LocalDriver(sink, recovery).drain()
    assert sorted(sent(destination)) == ["a", "b", "c", "d", "e", "f", "g"]
    assert history(recovery)[-1].counts["rows_held"] == 0


def test_without_across_epochs_nothing_is_held() -> None:
    destination, recovery = Destination(), MemoryRecoveryConfig()
    LocalDriver(TextSink(destination), recovery).run_epoch(0, [["a"], []])
    assert sent(destination) == ["a"]
    assert history(recovery)[-1].counts["rows_held"] == 0


def test_what_waited_is_delivered_once_across_epochs_is_off_by_all_workers_or_one_per_task() -> None:
    for options, held in ((EpochOptions(worker_count=1), [0]), (EpochOptions(), [1, 0])):
        destination, recovery = Destination(), MemoryRecoveryConfig()
        LocalDriver(TextSink(destination, across_epochs=True, max_batch_size=4), recovery).run_epoch(0, [["a"], ["b"]])
        for epoch, left in enumerate(held, start=1):
            LocalDriver(TextSink(destination), recovery, options=options).run_epoch(epoch, [["c"]])
            assert history(recovery)[-1].buffered_rows == left
        assert {"a", "b"} <= set(sent(destination))


def test_what_is_refused_goes_to_the_other_sink_in_the_same_epoch() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(split=entries if "bad" in entries else [], reason="malformed", code="400")

    destination, letters = Destination(service), Destination()
    sink = DeadLetteringSink(
        TextSink(destination, max_in_flight_requests=1),
        TextSink(letters),
    )
    assert not resolve(sink).keeps_writer_state()
    result = LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [["a", "bad", "b"]])
    assert destination.accepted == dict.fromkeys("ab", 1)
    (letter,) = sent(letters)
    assert "'row': 'bad'" in letter
    assert "malformed" in letter
    assert result.counts["rows"] == 3
    assert json.dumps(result.counts)
