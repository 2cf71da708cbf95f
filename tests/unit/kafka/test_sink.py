"""`KafkaSink` as a user writes it: what is refused, what it says of itself; no broker is asked."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from outfall.capabilities import Guarantee
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.kafka import KafkaSink, sink_from_options
from outfall.source_options import make_sink

MISSPELT: dict[str, Any] = {"value_fromat": "json"}


def test_what_it_says_of_itself_holds_no_broker_but_where_it_is() -> None:
    sink = KafkaSink("kafka:9092", "events", client_options={"sasl.password": "hunter2"})
    assert (sink.kind(), sink.target(), sink.place()) == ("kafka", "kafka:events", "kafka:9092 events")
    assert KafkaSink("kafka:9092").target() == "kafka:*"
    assert (sink.guarantee(), sink.owns_target()) == (Guarantee.AT_LEAST_ONCE, False)
    assert KafkaSink("kafka:9092", "events", parts=2).guarantee() == Guarantee.EXACTLY_ONCE
    assert "hunter2" not in repr(sink)


def test_options_make_the_same_sink_and_it_survives_pickling() -> None:
    given = {"brokers": "a:1,b:2", "topic": "t", "valueFormat": "json", "keycolumn": "k",
             "deliverytimeout": "30 seconds",
             "clientoptions": '{"sasl.password": "env:NOWHERE", "linger.ms": 20}'}  # fmt: skip
    sink = pickle.loads(pickle.dumps(sink_from_options(given)))
    assert sink.options == KafkaSink(
        ["a:1", "b:2"],  # type: ignore[arg-type]
        "t", value_format="json", key_column="k", delivery_timeout=30,
        client_options={"sasl.password": "env:NOWHERE", "linger.ms": 20},
    ).options  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_sink("kafka", {"brokers": "a:1", "topic": "t", "parts": "2"}),
            "has parts, to which rows",
        ),
        (lambda: sink_from_options({"brokers": "a:1", "topics": "t"}), "did you mean topic"),
        (lambda: KafkaSink("a:1", "t", parts=2, dead_letter=FileSink("/x")), "exclude each other"),
        (lambda: KafkaSink("a:1", "t", **MISSPELT), "did you mean value_format"),
        (lambda: resolve(KafkaSink("a:1", "t")).in_save_mode("overwrite"), 'pass mode="append"'),
    ],
)
def test_what_it_refuses(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_how_many_records_may_be_refused_is_an_option() -> None:
    kept = FileSink("/x")
    sinks = [KafkaSink("a:1", "t", dead_letter=kept), KafkaSink("a:1", "t", dead_letter=kept, max_dead_letters=7)]
    assert [sink.children()["sink"].max_dead_letters() for sink in sinks] == [1000, 7]
