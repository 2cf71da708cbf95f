"""The boundaries of the asynchronous base, one by one: Flink's `AsyncSinkWriterTest` is the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ByteSize

from outfall.async_sink import AsyncSinkOptions, AsyncSinkSettings, FixedLimiter, RequestOutcome
from outfall.capabilities import Guarantee
from outfall.capability_checks import check_sink, resolve
from outfall.errors import CapabilityError, ConfigurationError, TargetError, TransientError, ValueRefusedError
from outfall.options import make_options
from outfall.testing.virtual_time import VirtualEventQueue
from tests.unit.support.async_destination import Answer, Destination, Letters, TextSink, accept, opened


def letters(first: str, last: str) -> list[str]:
    return [chr(code) for code in range(ord(first), ord(last) + 1)]


def silent(entries: Sequence[str], number: int) -> Answer:
    return None


# Settings.


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_in_flight_requests": 0}, "max_in_flight_requests"),
        ({"max_buffered_requests": -1}, "max_buffered_requests"),
        ({"max_batch_size_in_bytes": 0}, "max_batch_size_in_bytes"),
        ({"max_time_in_buffer_ms": 0}, "max_time_in_buffer_ms"),
        ({"max_record_size_in_bytes": 0}, "max_record_size_in_bytes"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"max_batch_size": 10, "max_buffered_requests": 10}, "must be greater than max_batch_size"),
        ({"max_batch_size_in_bytes": 10, "max_record_size_in_bytes": 11}, "must not be less than"),
        ({"retry_backoff": 2, "max_retry_backoff": 1}, "max_retry_backoff must not be less"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make_options(AsyncSinkOptions, settings)


def test_limits_may_be_equal_where_flink_lets_them() -> None:
    make_options(AsyncSinkOptions, {"max_batch_size_in_bytes": 10, "max_record_size_in_bytes": 10})
    make_options(AsyncSinkOptions, {"max_batch_size": 10, "max_buffered_requests": 11})


def test_keyword_arguments_and_options_are_the_same() -> None:
    assert set(AsyncSinkSettings.__annotations__) == {*AsyncSinkOptions.model_fields, *AsyncSinkOptions.aliases}


def test_the_names_of_other_sinks_are_aliases_of_flinks() -> None:
    common = {"batch_size": 7, "batch_bytes": "1 KiB", "flush_interval": "1.5 seconds", "max_record_bytes": 100}
    assert make_options(AsyncSinkOptions, common) == AsyncSinkOptions(
        max_batch_size=7,
        max_batch_size_in_bytes=ByteSize(1024),
        max_time_in_buffer_ms=1500,
        max_record_size_in_bytes=ByteSize(100),
    )
    with pytest.raises(ConfigurationError, match=r"max_batch_size of .*: given twice, also as batch_size"):
        make_options(AsyncSinkOptions, {"batch_size": 7, "max_batch_size": 7})


@pytest.mark.parametrize(("alias", "value"), [("batch_size", 0), ("flush_interval", "soon"), ("batch_bytes", "x")])
def test_an_error_names_the_alias_that_was_given(alias: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"option {alias} of AsyncSink: .*{value!r}") as refused:
        make_options(AsyncSinkOptions, {alias: value})
    assert "max_" not in str(refused.value)


def test_the_sink_has_the_shape_that_the_engine_asks_for() -> None:
    sink = TextSink(Destination())
    check_sink(sink)
    assert resolve(sink).guarantee() is Guarantee.AT_LEAST_ONCE
    assert not resolve(sink).keeps_writer_state()
    assert resolve(TextSink(Destination(), across_epochs=True)).keeps_writer_state()


# Batches.


def test_a_full_batch_goes_at_once_and_a_part_of_one_stays() -> None:
    partition, destination = opened(max_batch_size=3)
    partition.write_batch(letters("a", "e"))
    assert destination.requests == [["a", "b", "c"]]
    assert partition.buffered == 2


def test_a_byte_total_equal_to_the_limit_is_one_request() -> None:
    partition, destination = opened(max_batch_size_in_bytes=12, max_record_size_in_bytes=12)
    partition.write_batch(["aaaa", "bbbb", "cccc"])
    assert destination.requests == [["aaaa", "bbbb", "cccc"]]


def test_one_byte_more_waits_for_the_next_request() -> None:
    partition, destination = opened(max_batch_size_in_bytes=11, max_record_size_in_bytes=11)
    partition.write_batch(["aaaa", "bbbb", "cccc"])
    assert destination.requests == [["aaaa", "bbbb"]]
    partition.flush(True)
    assert destination.requests == [["aaaa", "bbbb"], ["cccc"]]


def test_sizes_count_bytes_and_not_characters() -> None:
    partition, destination = opened(max_batch_size_in_bytes=4, max_record_size_in_bytes=4)
    partition.write_batch(["ä", "ö", "ü"])
    partition.flush(True)
    assert destination.requests == [["ä", "ö"], ["ü"]]


def test_entries_without_size_are_batched_by_number() -> None:
    partition, destination = opened(max_batch_size=2)
    partition.write_batch(["", "", ""])
    partition.flush(True)
    assert destination.requests == [["", ""], [""]]


def test_a_record_of_exactly_the_limit_passes_and_one_byte_more_stops_the_query() -> None:
    partition, destination = opened(max_record_size_in_bytes=4)
    partition.write_batch(["aaaa"])
    with pytest.raises(ValueRefusedError, match="It has 5 bytes, and max_record_size_in_bytes is 4"):
        partition.write_batch(["bbbbb"])
    with pytest.raises(ValueRefusedError):
        partition.flush(True)
    assert destination.requests == []


def test_a_record_over_the_limit_becomes_a_dead_letter_and_the_others_pass() -> None:
    partition, destination = opened(max_record_size_in_bytes=4)
    dead = Letters()
    partition.dead_letters_to(dead)
    partition.write_batch(["a", "bbbbb", "c"])
    partition.flush(True)
    assert destination.requests == [["a", "c"]]
    assert [(letter.row, letter.code) for letter in dead.all] == [("bbbbb", "too_large")]


def test_writing_waits_while_the_buffer_is_full() -> None:
    partition, destination = opened(max_batch_size=2, max_buffered_requests=3)
    partition.write_batch(letters("a", "j"))
    assert partition.buffered <= 3
    assert destination.events.now() > 0
    partition.flush(True)
    assert [entry for request in destination.requests for entry in request] == letters("a", "j")


def test_no_more_requests_than_allowed_are_under_way() -> None:
    partition, destination = opened(silent, max_in_flight_requests=3, max_batch_size=1)
    partition.write_batch(letters("a", "f"))
    assert len(destination.requests) == 3
    assert partition.in_flight == 3
    assert partition.metrics.counts["max_in_flight"] == 3


# Retries.


def test_a_failed_entry_returns_to_the_head_in_order() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=[entries[0], entries[2]] if number == 0 else [])

    partition, destination = opened(service, max_batch_size=3)
    partition.write_batch(letters("a", "e"))
    partition.flush(True)
    assert destination.requests == [["a", "b", "c"], ["a", "c", "d"], ["e"]]


def test_two_failed_requests_return_in_the_order_of_their_rows_whichever_answers_first() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return (0.03, 0.02, 0.01)[min(number, 2)], RequestOutcome(retry=entries if number < 2 else [])

    partition, destination = opened(service, max_batch_size=2, max_in_flight_requests=2, jitter=0.0)
    partition.write_batch(letters("a", "d"))
    partition.flush(True)
    again = destination.requests[2:]
    assert again == [["c", "d"], ["a", "b"]]  # the first to fail is the first to be sent again: nothing holds it up

    partition, destination = opened(service, max_batch_size=2, max_in_flight_requests=2, jitter=1.0)
    partition.write_batch(letters("a", "d"))
    destination.events.advance(0.2)  # both failures are known before either is due
    partition.write_batch(["e"])
    destination.events.advance(0.2)
    partition.flush(True)
    assert destination.requests[2:] == [["a", "b"], ["c", "d"], ["e"]]


def test_with_one_request_at_a_time_nothing_passes_an_entry_that_waits() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=entries if number < 3 else [])

    partition, destination = opened(service, max_batch_size=2)
    partition.write_batch(letters("a", "f"))
    partition.flush(True)
    assert destination.requests == [["a", "b"]] * 4 + [["c", "d"], ["e", "f"]]


def test_with_several_at_a_time_an_entry_that_waits_holds_no_slot() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=entries, after=5.0) if number == 0 else RequestOutcome()

    partition, destination = opened(service, max_batch_size=1, max_in_flight_requests=2)
    partition.write_batch(letters("a", "z"))
    partition.flush(True)
    assert destination.requests[-1] == ["a"]
    assert destination.times[-1] >= 5
    assert destination.times[-2] < 1


def test_a_pause_for_the_whole_host_holds_every_request() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=entries, after=5.0, hold_host=True) if number == 0 else RequestOutcome()

    partition, destination = opened(service, max_batch_size=1, max_in_flight_requests=2)
    partition.write_batch(letters("a", "d"))
    partition.flush(True)
    assert destination.times[:2] == [0.0, 0.0]
    assert min(destination.times[2:]) >= 5


def test_a_pause_for_the_host_is_kept_by_the_next_task() -> None:
    destination = Destination(lambda entries, number: (0.0, RequestOutcome(retry=entries, after=5.0, hold_host=True)))
    sink = TextSink(destination)
    sink.open().write_batch(letters("a", "j"))
    first = sink.open()
    first.write_batch(["k"])
    destination.events.advance(0.1)
    sink.state.retry_gate.hold(8.0)
    destination.service = accept
    first.flush(True)
    assert destination.times[-1] == 8.0


class Ticking(VirtualEventQueue):
    """Its clock goes on with every look at it, as real ones do."""

    TICK = 2.0**-20

    def now(self) -> float:
        self.seconds += self.TICK
        return self.seconds


@pytest.mark.parametrize("ticks", range(16))
def test_a_pause_may_end_at_any_moment_while_nothing_else_is_under_way(ticks: int) -> None:
    destination = Destination(events=Ticking())
    sink = TextSink(destination)
    sink.state.retry_gate.hold(ticks * Ticking.TICK)
    partition = sink.open()
    partition.write_batch(["a"])
    partition.flush(True)
    assert destination.requests == [["a"]]


def test_a_request_that_must_not_change_is_sent_again_as_it_was() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=entries, together=True) if number in (0, 3) else RequestOutcome()

    partition, destination = opened(service, max_batch_size=2, max_in_flight_requests=2)
    partition.write_batch(letters("a", "g"))
    partition.flush(True)
    first, again = [index for index, request in enumerate(destination.requests) if "a" in request]
    assert destination.requests[again] == destination.requests[first]
    assert destination.ids[again] == destination.ids[first]
    assert len(set(destination.ids)) == len(destination.ids) - 2


def test_entries_with_one_key_keep_their_order_and_do_not_hold_up_others() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=[entry for entry in entries if entry == "a1" and number == 0])

    partition, destination = opened(service, max_batch_size=2, max_in_flight_requests=4, key=lambda entry: entry[0])
    partition.write_batch(["a1", "b1", "a2", "c1", "a3", "b2"])
    partition.flush(True)
    sent = [entry for request in destination.requests for entry in request]
    assert [entry for entry in sent if entry.startswith("a")] == ["a1", "a1", "a2", "a3"]
    assert sent.index("c1") < sent.index("a2")
    assert all(len({entry[0] for entry in request}) == len(request) for request in destination.requests)


def test_a_request_at_fault_is_split_down_to_the_one_entry() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        bad = "p" in entries
        return 0.01, RequestOutcome(split=entries if bad else [], reason="malformed", code="400", excerpt="<p>no</p>")

    partition, destination = opened(service, max_batch_size=26)
    dead = Letters()
    partition.dead_letters_to(dead)
    partition.write_batch(letters("a", "z"))
    partition.flush(True)
    assert [(letter.row, letter.reason, letter.code, letter.excerpt) for letter in dead.all] == [
        ("p", "malformed", "400", "<p>no</p>")
    ]
    good = [entry for request in destination.requests if "p" not in request for entry in request]
    assert good == [entry for entry in letters("a", "z") if entry != "p"]
    assert len(destination.requests) <= 2 * 6


# Answers.


def test_an_answer_after_the_timeout_is_counted_and_changes_nothing() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return (3.0 if number == 0 else 2.5), RequestOutcome()

    partition, destination = opened(service, max_batch_size=2, request_timeout=2.6, jitter=0.0)
    partition.write_batch(["a", "b"])
    partition.flush(True)
    assert destination.requests == [["a", "b"], ["a", "b"]]
    counts = partition.metrics.counts
    assert (counts["timeouts"], counts["late_answers"], counts["sent"], counts["retries"]) == (1, 1, 2, 1)


def test_an_answer_in_the_event_queue_beats_the_timeout() -> None:
    partition, destination = opened(silent, max_batch_size=1, request_timeout=1)
    partition.write_batch(["a"])
    destination.results[0].complete()
    destination.events.advance(5.0)
    partition.flush(True)
    assert destination.requests == [["a"]]


def test_a_timeout_stops_the_query_if_asked() -> None:
    partition, _ = opened(silent, request_timeout=1, fail_on_timeout=True)
    partition.write_batch(["a"])
    with pytest.raises(TransientError, match="did not respond within 1 s"):
        partition.flush(True)


def test_two_answers_to_one_request_are_a_fault_of_the_shim() -> None:
    partition, destination = opened(silent, max_batch_size=1)
    partition.write_batch(["a"])
    destination.results[0].complete()
    with pytest.raises(CapabilityError, match="completed twice"):
        destination.results[0].retry(["a"])


@pytest.mark.parametrize(
    "outcome",
    [
        RequestOutcome(retry=["not of the request"]),
        RequestOutcome(retry=["a", "a"]),
        RequestOutcome(retry=["a"], split=["a"]),
    ],
)
def test_answers_that_do_not_fit_their_request_are_a_fault_of_the_shim(outcome: RequestOutcome[str]) -> None:
    partition, _ = opened(lambda entries, number: (0.0, outcome))
    partition.write_batch(["a"])
    with pytest.raises(CapabilityError):
        partition.flush(True)


def test_equal_entries_are_told_apart_by_number() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.0, RequestOutcome(retry=entries[:1] if number == 0 else [])

    partition, destination = opened(service)
    partition.write_batch(["x", "x", "x"])
    partition.flush(True)
    assert destination.requests == [["x", "x", "x"], ["x"]]
    assert partition.metrics.counts["sent"] == 3


def test_a_fatal_error_stops_the_partition_for_good() -> None:
    partition, _ = opened(lambda entries, number: (0.0, RequestOutcome(error=RuntimeError("no such stream"))))
    partition.write_batch(["a"])
    with pytest.raises(TargetError, match="RuntimeError: no such stream"):
        partition.flush(True)
    with pytest.raises(TargetError):
        partition.flush(True)
    with pytest.raises(TargetError):
        partition.write_batch(["b"])


def test_refused_entries_stop_the_query_where_nobody_takes_them() -> None:
    partition, destination = opened(silent, max_batch_size=1)
    partition.write_batch(["naïve"])
    destination.results[0].dead_letter("naïve", "not a number", "22P02")
    with pytest.raises(ValueRefusedError, match=r"a record is rejected \(22P02\)\. Not a number"):
        partition.flush(True)


def test_the_query_stops_when_the_dead_letters_cannot_be_kept() -> None:
    def full(_: Any) -> None:
        raise OSError(28, "no space left")

    partition, destination = opened(silent, max_batch_size=1)
    partition.dead_letters_to(full)
    partition.write_batch(["a"])
    destination.results[0].dead_letter("a", "no")
    with pytest.raises(OSError, match="no space left"):
        partition.flush(True)
    with pytest.raises(OSError, match="no space left"):
        partition.flush(True)
    assert "dead_letters" not in partition.metrics.counts


def test_a_stop_request_ends_a_back_off() -> None:
    partition, destination = opened(lambda entries, number: (0.01, RequestOutcome(retry=entries, after=100.0)))
    partition.write_batch(["a"])
    destination.events.at(7.0, lambda: partition.stop(InterruptedError("the task is killed")))
    with pytest.raises(InterruptedError):
        partition.flush(True)
    assert destination.events.now() == 7.0


# Flushing and the timer.


def test_flush_without_the_end_of_input_waits_for_what_is_under_way_and_starts_nothing() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 1.0, RequestOutcome(retry=entries[1:])

    partition, destination = opened(service, max_batch_size=3, across_epochs=True)
    partition.write_batch(letters("a", "e"))
    partition.flush(False)
    assert destination.requests == [["a", "b", "c"]]
    assert partition.in_flight == 0
    assert partition.snapshot_state(0)[0].entries == ["b", "c", "d", "e"]


def test_flush_at_the_end_of_input_drains() -> None:
    partition, destination = opened(max_batch_size=3, across_epochs=True)
    partition.write_batch(letters("a", "e"))
    partition.flush(True)
    assert destination.requests == [["a", "b", "c"], ["d", "e"]]
    assert partition.snapshot_state(0) == []


def test_without_across_epochs_every_flush_drains() -> None:
    partition, destination = opened()
    partition.write_batch(["a"])
    partition.flush(False)
    assert destination.requests == [["a"]]


def test_the_timer_sends_what_does_not_fill_a_request() -> None:
    partition, destination = opened(max_time_in_buffer_ms=100)
    partition.write_batch(["a"])
    destination.events.advance(0.099)
    partition.write_batch(["b"])
    assert destination.requests == []
    destination.events.advance(0.001)
    partition.write_batch(["c"])
    assert destination.requests == [["a", "b", "c"]]


def test_there_is_exactly_one_timer() -> None:
    partition, destination = opened(max_time_in_buffer_ms=100)
    partition.write_batch(["a"])
    destination.events.advance(0.06)
    partition.write_batch(["b"])  # does not begin another one, nor put it off
    destination.events.advance(0.05)
    partition.write_batch([])
    assert destination.requests == [["a", "b"]]
    destination.events.advance(0.05)
    partition.write_batch(["c"])  # a new one: it is not the old one's time that counts
    destination.events.advance(0.09)
    partition.write_batch([])
    assert destination.requests == [["a", "b"]]
    destination.events.advance(0.01)
    partition.write_batch([])
    assert destination.requests == [["a", "b"], ["c"]]


def test_a_timer_that_found_the_limit_reached_still_sends_what_it_was_for() -> None:
    partition, destination = opened(max_time_in_buffer_ms=100, limiter=FixedLimiter(1), max_in_flight_requests=2)
    destination.service = lambda entries, number: (0.5, RequestOutcome())
    partition.write_batch(letters("a", "k"))
    destination.events.advance(0.2)
    partition.write_batch([])
    assert len(destination.requests) == 1
    destination.events.advance(0.4)
    partition.write_batch([])
    assert destination.requests[1:] == [["k"]]


def test_closing_sends_nothing() -> None:
    partition, destination = opened()
    partition.write_batch(["a"])
    partition.close()
    assert destination.requests == []


def test_counters_say_what_went_out() -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.25, RequestOutcome(retry=entries[:1] if number == 0 else [])

    partition, _ = opened(service, max_batch_size=2, jitter=0.0)
    partition.write_batch(["aa", "ä"])
    partition.flush(True)
    assert partition.metrics.counts == {
        "requests": 2,
        "num_records_out": 3,
        "num_bytes_out": 6,
        "sent": 2,
        "bytes": 4,
        "failed": 1,
        "retries": 1,
        "max_in_flight": 1,
        "max_limit": 1000,
        "max_send_time_ms": 250,
        "send_time_ms": 500,
    }
    assert partition.current_send_time == 0.25
