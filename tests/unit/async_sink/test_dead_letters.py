"""`dead_letter=` of the sinks on the asynchronous base, and of those that users write."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from outfall.async_sink import AsyncSink, AsyncSinkSettings
from outfall.aws.client import AwsSink
from outfall.capabilities import SupportsPreWriteTopology
from outfall.capability_checks import capabilities_of
from outfall.contexts import WriterInitContext
from outfall.errors import CapabilityError, ConfigurationError, ValueRefusedError
from outfall.file import FileSink
from outfall.http import HttpSink, Response
from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.testing import ByReference, LocalDriver, MemoryRecoveryConfig
from outfall.wrappers import DeadLetteringSink, WithDeadLetters
from tests.unit.async_sink.test_blocking import LinesSink
from tests.unit.support.async_destination import Destination, Letters, TextPartition, TextSink
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.http_in_time import TimedSink, opened
from tests.unit.support.warehouse import Warehouse, rows_of


class KeptLines(WithDeadLetters):
    """What a user writes around a shim."""

    def __init__(self, target: Any = None, dead_letter: Any = None, **settings: Unpack[AsyncSinkSettings]) -> None:
        super().__init__(LinesSink(target, **settings), dead_letter)


LETTERS = FileSink("/letters")
MAKERS: dict[str, Callable[..., Any]] = {
    "a user's": KeptLines,
    "kinesis": lambda **more: KinesisSink("s", region="us-east-1", **more),
    "firehose": lambda **more: FirehoseSink("d", region="us-east-1", **more),
    "http": lambda **more: HttpSink("https://api.example/events", **more),
}


class Refusing(ByReference):
    """A client of both services, that refuses calls which hold a minus sign."""

    def __init__(self) -> None:
        self.accepted: list[Any] = []

    def _put(self, records: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if any(b"-" in record["Data"] for record in records):
            error = {"Code": "ValidationException", "Message": "below nought"}
            raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}, "PutRecords")
        self.accepted += [json.loads(record["Data"]) for record in records]
        return [{} for _ in records]

    def describe_stream_summary(self, **_: Any) -> dict[str, Any]:
        return {"StreamDescriptionSummary": {"StreamStatus": "ACTIVE", "OpenShardCount": 1}}

    def describe_delivery_stream(self, **_: Any) -> dict[str, Any]:
        return {"DeliveryStreamDescription": {"DeliveryStreamStatus": "ACTIVE"}}

    def put_records(self, *, Records: Any, **rest: Any) -> dict[str, Any]:  # noqa: N803
        return {"Records": self._put(Records)}

    def put_record_batch(self, *, Records: Any, **rest: Any) -> dict[str, Any]:  # noqa: N803
        return {"RequestResponses": self._put(Records)}


@pytest.mark.parametrize("name", MAKERS)
def test_every_constructor_takes_it(name: str) -> None:
    sink = MAKERS[name](dead_letter=LETTERS)
    assert isinstance(sink.delegate, DeadLetteringSink)
    assert list(sink.children()) == ["sink", "dead_letters"]
    inner = sink.children()["sink"]
    assert isinstance(inner, AsyncSink)
    assert type(inner) is type(MAKERS[name]().delegate)
    assert sink.children()["dead_letters"] is LETTERS


@pytest.mark.parametrize("name", MAKERS)
def test_with_none_a_sink_is_itself(name: str) -> None:
    sink = MAKERS[name](dead_letter=None)
    assert type(sink) is type(MAKERS[name]())
    assert type(sink.delegate) is type(MAKERS[name]().delegate)
    assert sink.delegate.options == MAKERS[name]().delegate.options


@pytest.mark.parametrize("name", MAKERS)
def test_sinks_are_copied_and_pickled_with_it_and_without(name: str) -> None:
    for sink in (MAKERS[name](), MAKERS[name](dead_letter=LETTERS)):
        for other in (copy.copy(sink), pickle.loads(pickle.dumps(sink))):
            assert type(other) is type(sink)
            assert vars(other).keys() == vars(sink).keys()
    again = pickle.loads(pickle.dumps(MAKERS[name](dead_letter=LETTERS)))
    assert again.children()["sink"].options == MAKERS[name]().delegate.options


def test_http_still_chooses_its_class_and_content_takes_any_letters() -> None:
    by_content: dict[str, Any] = {"idempotency": "content", "body": "record"}
    assert SupportsPreWriteTopology in capabilities_of(HttpSink("https://api.example/events", **by_content))
    sink = HttpSink("https://api.example/events", dead_letter=LETTERS, **by_content)
    assert SupportsPreWriteTopology in capabilities_of(sink)


@pytest.mark.parametrize("kind", [KinesisSink, FirehoseSink])
def test_what_aws_refuses_is_kept_and_the_others_go_through(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, letters = Refusing(), NamedStagingSink(Warehouse(), "letters")
    monkeypatch.setattr(AwsSink, "client", lambda self: client)
    sink = kind("name", region="us-east-1", dead_letter=letters)
    counts = LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[{"id": 1}, {"id": -2}, {"id": 3}]]).counts
    assert sorted(row["id"] for row in client.accepted) == [1, 3]
    (letter,) = rows_of(letters.warehouse)
    assert (json.loads(letter["row"]), letter["code"], letter["epoch"]) == ({"id": -2}, "ValidationException", 0)
    assert "below nought" in letter["reason"]
    assert (counts["sent"], counts["dead_letters"]) == (2, 1)


class Sorting(Refusing):
    """Says of each record on its own what it thinks of it; what it has asked to be sent again it takes then."""

    def _put(self, records: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [self._one(json.loads(record["Data"])) for record in records]

    def _one(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] < 0:
            return {"ErrorCode": "InvalidArgumentException", "ErrorMessage": f"{row['id']} is below nought"}
        if row["id"] == 0 and row not in self.accepted:
            self.accepted.append(row)
            return {"ErrorCode": "InternalFailure", "ErrorMessage": "try again"}
        self.accepted.append(row)
        return {}


@pytest.mark.parametrize("kind", [KinesisSink, FirehoseSink])
def test_a_record_that_aws_refuses_among_others_has_its_own_reason(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, letters = Sorting(), NamedStagingSink(Warehouse(), "letters")
    monkeypatch.setattr(AwsSink, "client", lambda self: client)
    sink = kind("name", region="us-east-1", dead_letter=letters, retry_backoff=0.001, retry_deadline=2)
    rows = [{"id": number} for number in (0, -1, 1, -2)]
    counts = LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [rows]).counts
    found = [(json.loads(letter["row"])["id"], letter["reason"]) for letter in rows_of(letters.warehouse)]
    assert sorted(found) == [(number, f"InvalidArgumentException: {number} is below nought") for number in (-2, -1)]
    assert {letter["code"] for letter in rows_of(letters.warehouse)} == {"InvalidArgumentException"}
    assert (counts["sent"], counts["dead_letters"], counts["retries"]) == (2, 2, 1)


@pytest.mark.parametrize("name", MAKERS)
def test_how_many_there_may_be_is_an_option(name: str) -> None:
    assert [
        MAKERS[name](dead_letter=LETTERS, **given).delegate.children()["sink"].max_dead_letters()
        for given in ({}, {"max_dead_letters": 7})
    ] == [1000, 7]


def _key_of(row: Mapping[str, Any]) -> Any:
    return row["key"]


URL = "https://api.example/events"
BAD_ROWS: list[tuple[dict[str, Any], list[dict[str, Any]], str]] = [
    ({"url": URL + "/{name}"}, [{"name": None}, {"name": ""}, {"name": ".."}], "url"),
    ({"idempotency": "row", "key_column": "name"}, [{"name": None}, {"name": "x" * 256}], "idempotency key"),
    ({"idempotency": "item", "key_column": "name"}, [{"name": None}], "id of an item"),
]


def accept(now: float) -> Response:
    return Response(200, {}, b"")


def by_record(**options: Any) -> Any:
    writer = WriterInitContext("s", "i" * 16, generation=1, epoch=3, part=None, attempt=0)
    given: dict[str, Any] = {"body": "record", "max_in_flight_requests": 1} | options
    return TimedSink(**given).bind(writer)


@pytest.mark.parametrize(("options", "bad", "why"), BAD_ROWS)
def test_rows_that_make_no_request_are_kept_and_the_others_are_sent_once_in_order(
    options: dict[str, Any], bad: list[dict[str, Any]], why: str
) -> None:
    good = [{"id": number, "name": f"n{number}"} for number in range(9)]
    rows = good[:4] + [good[0] | row for row in bad] + good[4:] + [good[8] | bad[0]]
    partition, server = opened(accept, sink=by_record(**options))
    letters = Letters()
    partition.dead_letters_to(letters)
    partition.write_batch(rows)
    partition.flush(True)
    assert [json.loads(body)["id"] for body in server.bodies] == list(range(9))
    assert [json.loads(letter.row)["name"] for letter in letters.all] == [row["name"] for row in [*bad, bad[0]]]
    assert all(why in letter.reason for letter in letters.all)
    assert {(letter.code, letter.step, letter.epoch) for letter in letters.all} == {("not_convertible", "s", 3)}
    assert partition.metrics.counts["dead_letters"] == len(letters.all)


def test_content_keys_are_counted_once_although_a_batch_is_converted_again() -> None:
    partition, _ = opened(accept, sink=by_record(url=URL + "/{name}", idempotency="content"))
    partition.dead_letters_to(Letters())
    names = ["a", "a", None, "a", "a"]
    records: Any = partition._converted(pa.RecordBatch.from_pylist([{"name": name} for name in names]))
    assert [record.key.rpartition("-")[2] for record in records] == ["0", "1", "2", "3"]


def test_a_row_that_makes_no_request_stops_the_query_where_nobody_takes_it() -> None:
    partition, server = opened(accept, sink=by_record(url=URL + "/{name}"))
    with pytest.raises(ValueRefusedError, match=r"^\[step 's', epoch 3\] column 'name' is NULL.*Row 1 of the batch"):
        partition.write_batch([{"name": "a"}, {"name": None}])
    assert not server.bodies


KEYED_ROWS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"partition_key": "key"}, ["a", None, "", "k" * 257, "b"]),
    ({"partition_key": _key_of}, ["a", None, "", "k" * 257, "b"]),
    ({"explicit_hash_key": "key"}, ["1", None, "2"]),
    ({"data": "key"}, ["1", None, "2"]),
    ({"partition_key": "key", "data": "key"}, [b"1", b"\xff", b"2"]),
]


@pytest.mark.parametrize(("options", "keys"), KEYED_ROWS)
def test_rows_that_make_no_record_of_kinesis_are_kept(
    options: dict[str, Any], keys: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, letters = Refusing(), NamedStagingSink(Warehouse(), "letters")
    monkeypatch.setattr(AwsSink, "client", lambda self: client)
    sink = KinesisSink("name", region="us-east-1", dead_letter=letters, **options)
    rows = [{"id": number, "key": key} for number, key in enumerate(keys)]
    counts = LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [rows]).counts
    assert (counts["sent"], counts["dead_letters"]) == (2, len(keys) - 2)
    assert len(client.accepted) == 2
    assert len(rows_of(letters.warehouse)) == len(keys) - 2


class OddNumbers(TextPartition):
    """Converts row by row, and not every row."""

    def convert_row(self, row: Any) -> str:
        if row % 2 == 0:
            raise ValueRefusedError(f"{row} is even", do="leave it out")
        return str(row)


def test_a_shim_that_converts_row_by_row_refuses_single_rows() -> None:
    destination = Destination()
    partition, letters = OddNumbers(TextSink(destination)), Letters()
    partition.dead_letters_to(letters)
    partition.write_batch([1, 2, 3])
    partition.flush(True)
    assert destination.requests == [["1", "3"]]
    assert [(letter.row, letter.reason) for letter in letters.all] == [("2", "2 is even")]


def test_a_users_shim_keeps_what_is_too_large_for_it() -> None:
    seen: list[str] = []
    letters = NamedStagingSink(Warehouse(), "letters")
    sink = KeptLines(_Extend(seen), max_record_size_in_bytes=4, dead_letter=letters)
    LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[{"text": "a"}, {"text": "too long"}]])
    assert seen == ["a"]
    assert [letter["row"] for letter in rows_of(letters.warehouse)] == ["too long"]


class _Extend(ByReference):
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def __call__(self, entries: Any) -> None:
        self._seen.extend(entries)


def test_wrong_arguments_are_refused_as_ever() -> None:
    with pytest.raises(ConfigurationError, match=r"dead_leter of .*: unknown"):
        KinesisSink("s", dead_leter=LETTERS)  # type: ignore[call-arg]
    with pytest.raises(CapabilityError, match="parts"):
        KinesisSink("s", dead_letter=FileSink("/letters", parts=1))


def test_help_names_the_arguments() -> None:
    parameters = inspect.signature(KinesisSink).parameters
    assert next(iter(parameters)) == "stream"
    assert list(parameters)[-2:] == ["dead_letter", "settings"]
    assert parameters["dead_letter"].default is None
