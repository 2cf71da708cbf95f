"""Wrappers through `format("outfall")`: options of several sinks, batches and dead letters of any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from outfall.capabilities import SupportsCommitter
from outfall.capability_checks import capabilities_of
from outfall.errors import CapabilityError, ConfigurationError
from outfall.http import HttpSink
from outfall.source_options import make_sink, split_options
from outfall.wrappers import BatchingSink, DeadLetteringSink, FanOutSink


def made(**options: str) -> Any:
    """As Spark brings them: in lower case."""
    api, rest = split_options({name.lower().replace("__", "."): value for name, value in options.items()})
    return make_sink(api.sink, rest)


def test_a_fan_out_names_the_options_of_each_sink(tmp_path: Path) -> None:
    sink = made(
        sink="fanout",
        archive__sink="file", archive__path=f"{tmp_path}/a", archive__onExisting="resume",
        live__sink="file", live__path=f"{tmp_path}/b", live__format="csv",
    )  # fmt: skip
    assert isinstance(sink, FanOutSink)
    children = sink.children()
    assert {name: child.options.format for name, child in children.items()} == {"archive": "jsonl", "live": "csv"}
    assert children["archive"].options.on_existing == "resume"


def test_any_sink_has_batches_by_options(tmp_path: Path) -> None:
    sink = made(sink="file", path=f"{tmp_path}/a", batchSize="7", flush_interval="2 minutes", batchbytes="1 MiB")
    assert SupportsCommitter in capabilities_of(sink)
    assert isinstance(sink, BatchingSink)
    options = sink.options
    assert (options.batch_size, options.flush_interval.total_seconds(), options.batch_bytes) == (7, 120, 1 << 20)


def test_a_sink_that_has_an_option_of_the_wrapper_gets_it(tmp_path: Path) -> None:
    limits = {"batchSize": "7", "flush_interval": "2 seconds", "batch_bytes": "1 MiB"}
    sink = made(sink="fanout", a__sink="http", a__url="http://127.0.0.1/x", **{f"a__{k}": v for k, v in limits.items()})
    child = sink.children()["a"]
    assert isinstance(child, HttpSink)
    http = child.delegate.http
    assert (http.max_batch_size, http.max_time_in_buffer_ms, http.max_batch_size_in_bytes) == (7, 2000, 1 << 20)
    with pytest.raises(ConfigurationError, match="given twice"):
        made(sink="http", url="http://127.0.0.1/x", batch_size="7", max_batch_size="7")


def test_one_sink_of_several_has_batches(tmp_path: Path) -> None:
    sink = made(
        sink="fanout",
        a__sink="file",
        a__path=f"{tmp_path}/a",
        a__batch_size="7",
        b__sink="file",
        b__path=f"{tmp_path}/b",
    )
    batched = {name for name, child in sink.children().items() if isinstance(child, BatchingSink)}
    assert batched == {"a"}


def test_a_sink_has_a_dead_letter_sink_by_options(tmp_path: Path) -> None:
    sink = made(sink="http", url="http://127.0.0.1/x", dead_letter__sink="file", deadLetter__path=f"{tmp_path}/b")
    assert isinstance(sink, DeadLetteringSink)
    assert sink.children()["dead_letters"].options.path == f"{tmp_path}/b"


@pytest.mark.parametrize(
    "options",
    [
        {"sink": "file", "path": "/a"},
        {"sink": "s3", "path": "s3://lake/flights"},
        {"sink": "postgres", "dsn": "host=/nowhere", "table": "flights"},
        {"sink": "fanout", "a__sink": "http", "a__url": "http://127.0.0.1/x"},
    ],
    ids=lambda options: options["sink"],
)
def test_a_dead_letter_sink_is_refused_where_nothing_is_handed_over(options: dict[str, str]) -> None:
    with pytest.raises(CapabilityError, match=r"does not report rejected records.*PostgresSink.*dead_letter_table"):
        made(**options, dead_letter__sink="file", dead_letter__path="/b")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sink": "fanout", "path": "/a"}, '"archive.path"'),
        ({"sink": "fanout", "archive__path": "/a"}, '"archive.sink" is missing'),
        ({"sink": "fanout"}, "no sinks"),
        (
            {"sink": "fanout", "archive__sink": "file", "archive__path": "/a", "archve__format": "csv"},
            'if "archive" is meant, write archve.… as archive.…',
        ),
        ({"sink": "fanout", "a__sink": "file", "a__path": "/a", "a__pfad": "/b"}, "pfad of FileSink: unknown"),
        (
            {"sink": "fanout", "a__sink": "file", "a__path": "/a", "a__parts": "2"},
            "has parts, to which rows are routed",
        ),
        ({"sink": "fanout", "a__sink": "nowhere"}, "there is no sink 'nowhere'"),
        ({"sink": "file", "path": "/a", "chekpointlocation": "/b"}, "did you mean checkpoint_location?"),
        ({"sink": "file", "path": "/a", "max_bytes": "1"}, "did you mean batch_bytes?"),
        (
            {"sink": "file", "path": "/a", "batch_size": "0"},
            "batch_size of BatchingSink: must be greater than or equal to 1",
        ),
        ({"sink": "file", "path": "/a", "dead_letter__path": "/b"}, '"dead_letter.sink" is missing'),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_wrong_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        made(**options)
    assert text in str(refused.value)
