"""Rows as records: bodies, urls, keys."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.contexts import WriterInitContext
from outfall.errors import SerializationError, ValueRefusedError
from outfall.http.options import HttpOptions
from outfall.http.records import (
    BodyMaker,
    ContentKeys,
    HttpRecord,
    HttpRecordSerializer,
    RecordMaker,
    header_value,
    user_key,
)
from outfall.http.templates import UrlTemplate, texts

URL = "https://api.example/events"


def options(**given: Any) -> HttpOptions:
    return HttpOptions(**({"url": URL} | given))


def context(epoch: int = 0, incarnation: str = "i" * 16) -> WriterInitContext:
    return WriterInitContext("sink", incarnation, generation=1, epoch=epoch, part=None, attempt=0)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows))


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({"body": "array"}, b'[{"id":1},{"id":2}]'),
        ({"body": "wrapped", "wrap_key": 'ö"'}, '{"ö\\"":[{"id":1},{"id":2}]}'.encode()),
        ({"body": "ndjson"}, b'{"id":1}\n{"id":2}\n'),
    ],
)
def test_shapes_of_bodies(given: dict[str, Any], body: bytes) -> None:
    maker = BodyMaker(options(**given))
    assert maker.make([b'{"id":1}', b'{"id":2}']) == body


def test_one_record_is_its_own_body_and_never_two() -> None:
    maker = BodyMaker(options(body="record"))
    assert maker.make([b"{}"]) == b"{}"
    with pytest.raises(ValueError, match="too many values"):
        maker.make([b"{}", b"{}"])


def test_bodies_are_compressed_alike_each_time() -> None:
    records = [b'{"text":"\xc3\xa4"}'] * 1000
    maker = BodyMaker(options(compression="gzip"))
    assert maker.make(records) == maker.make(records)
    assert json.loads(gzip.decompress(maker.make(records))) == [{"text": "ä"}] * 1000
    zstd = BodyMaker(options(compression="zstd")).make(records)
    with pa.input_stream(pa.py_buffer(zstd), compression="zstd") as stream:
        assert json.loads(stream.read()) == [{"text": "ä"}] * 1000


@pytest.mark.parametrize(("shape", "kind"), [("array", "application/json"), ("ndjson", "application/x-ndjson")])
def test_the_content_type_says_what_it_is(shape: Any, kind: str) -> None:
    assert BodyMaker(options(body=shape)).content_type == kind
    assert BodyMaker(options(body=shape, content_type="text/x")).content_type == "text/x"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("ä", pa.large_string(), "ä"),
        (7, pa.uint16(), "7"),
        (True, pa.bool_(), "true"),
        (date(2026, 1, 1), pa.date32(), "2026-01-01"),
        (Decimal("1.5"), pa.decimal128(10, 2), "1.50"),
    ],
)
def test_a_key_is_made_of_every_type_whose_text_is_one_value(value: Any, kind: pa.DataType, text: str) -> None:
    assert texts(pa.record_batch([pa.array([value], kind)], ["key"]), "key", "the key") == [text]


UTC_TIME = pa.timestamp("us", "UTC")
MIDNIGHT = datetime(2026, 1, 1)  # noqa: DTZ001 - one without a zone is tried too


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (float("nan"), pa.float64(), '"NaN"'),
        (float("inf"), pa.float32(), '"Infinity"'),
        (float("-inf"), pa.float64(), '"-Infinity"'),
        (Decimal("1.5"), pa.decimal128(10, 2), "1.50"),
        (Decimal(0), pa.decimal128(38, 10), "0E-10"),
        (Decimal("-1e-10"), pa.decimal128(38, 10), "-1E-10"),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (b"\xff\0", pa.binary(), '"/wA="'),
        (MIDNIGHT, UTC_TIME, '"2026-01-01T00:00:00.000Z"'),
        (MIDNIGHT.replace(microsecond=7), UTC_TIME, '"2026-01-01T00:00:00.000007Z"'),
        (MIDNIGHT, pa.timestamp("us"), '"2026-01-01T00:00:00.000"'),
        (MIDNIGHT.date(), pa.date32(), '"2026-01-01"'),
    ],
)
def test_values_are_written_as_the_documentation_says(value: Any, kind: pa.DataType, text: str) -> None:
    page = Path(__file__).parents[3].joinpath("docs", "http.md").read_text()
    table = page.partition("<!-- values -->\n")[2].partition("<!-- /values -->")[0]
    (record,) = RecordMaker(options()).make(pa.RecordBatch.from_pydict({"v": pa.array([value], kind)}))
    assert record.body == f'{{"v":{text}}}'.encode()
    assert f"`{text}`" in table
    json.loads(record.body)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.fixed_dictionaries({"a": st.text(), "b": st.none() | st.integers(-(2**63), 2**63 - 1)}), min_size=1))
def test_each_record_is_the_json_of_its_row(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    made = RecordMaker(options(ignore_null_fields=False)).make(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert [json.loads(record.body) for record in made] == rows
    assert {record.url for record in made} == {URL}


def test_null_fields_are_left_out_and_a_row_may_be_empty() -> None:
    made = RecordMaker(options()).make(batch({"a": 1}, {"a": None}))
    assert [record.body for record in made] == [b'{"a":1}', b"{}"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(min_size=1).filter(lambda text: text not in (".", "..")))
def test_a_value_stays_one_segment_of_the_path(value: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in value):
        return
    (url,) = UrlTemplate("https://host:8443/users/{user}/events?x={user}").expand(batch({"user": value})) or []
    split = urlsplit(url)
    assert (split.scheme, split.netloc, split.fragment) == ("https", "host:8443", "")
    assert [unquote(part) for part in split.path.split("/")] == ["", "users", value, "events"]
    assert url.isascii()


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [
        ("https://x/{a}", {"a": ".."}, "segment"),
        ("https://x/{a}{b}/y", {"a": ".", "b": "."}, "segment"),
        ("https://x/{a}", {"a": ""}, "NULL or empty, and the url requires it. Row 0 of the batch"),
        ("https://x/{a}/{b}", {"a": "1", "b": None}, "column 'b' is NULL"),
    ],
)
def test_values_that_would_lead_elsewhere_are_refused(template: str, row: dict[str, Any], message: str) -> None:
    schema = pa.schema([(name, pa.string()) for name in row])
    with pytest.raises(ValueRefusedError, match=message):
        UrlTemplate(template).expand(pa.RecordBatch.from_pylist([row], schema=schema))


def test_urls_take_numbers_and_dots_inside_a_segment() -> None:
    urls = UrlTemplate("https://x/v1.{a}/{b}").expand(batch({"a": 7, "b": "..."}))
    assert urls == ["https://x/v1.7/..."]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(), st.text())
def test_different_values_make_different_keys_that_a_header_can_carry(one: str, other: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in one + other):
        return
    try:
        keys = [user_key(one, "id"), user_key(other, "id")]
    except ValueRefusedError:
        return
    assert (keys[0] == keys[1]) == (one == other)
    assert all(header_value(key).isascii() and header_value(key).isprintable() for key in keys)


def test_keys_are_quoted_as_structured_fields_want_it() -> None:
    assert header_value(user_key('a"b\\c', "id")) == '"a\\"b\\\\c"'
    assert user_key("50%ä", "id") == "50%25%C3%A4"
    with pytest.raises(ValueRefusedError, match="300 characters"):
        user_key("x" * 300, "id")


def test_a_users_key_is_the_records_and_must_be_there() -> None:
    maker = RecordMaker(options(body="record", idempotency="row", key_column="id"))
    assert [record.key for record in maker.make(batch({"id": 1}, {"id": 2}))] == ["1", "2"]
    with pytest.raises(ValueRefusedError, match="the idempotency key requires it"):
        maker.make(pa.RecordBatch.from_pylist([{"id": None}], schema=pa.schema([("id", pa.int64())])))


def test_an_item_without_a_name_is_refused() -> None:
    maker = RecordMaker(options(idempotency="item", key_column="id"))
    assert [record.key for record in maker.make(batch({"id": "a"}))] == [None]
    with pytest.raises(ValueRefusedError, match="the id of an item"):
        maker.make(batch({"id": ""}))


ROWS = st.lists(st.integers(0, 3), max_size=30)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 4))
def test_keys_by_content_name_the_same_rows_however_they_are_cut_and_ordered(
    rows: list[int], random: Any, tasks: int, tasks_of_the_replay: int
) -> None:
    """Rows routed by content, as the sink's topology routes them: to any number of tasks, in any order."""

    def run(rows: list[int], tasks: int) -> Counter[tuple[str, bytes]]:
        made: Counter[tuple[str, bytes]] = Counter()
        for task in range(tasks):
            keys = ContentKeys(context(), "POST")
            bodies = [b"%d" % row for row in rows if row % tasks == task]
            made.update((keys.key(URL, body), body) for body in bodies)
        return made

    replay = list(rows)
    random.shuffle(replay)
    first = run(rows, tasks)
    assert run(replay, tasks_of_the_replay) == first
    assert set(first.values()) <= {1}


def test_keys_by_content_differ_between_epochs_checkpoints_urls_and_methods() -> None:
    made = {
        ContentKeys(context(), "POST").key(URL, b"{}"),
        ContentKeys(context(epoch=1), "POST").key(URL, b"{}"),
        ContentKeys(context(incarnation="j" * 16), "POST").key(URL, b"{}"),
        ContentKeys(context(), "PUT").key(URL, b"{}"),
        ContentKeys(context(), "POST").key(URL + "/1", b"{}"),
        ContentKeys(context(), "POST").key(URL, b"{ }"),
    }
    assert len(made) == 6


def test_a_record_survives_being_stored() -> None:
    serializer = HttpRecordSerializer()
    for record in (HttpRecord('{"ä":1}'.encode(), URL, "k"), HttpRecord(b"{}", URL)):
        assert serializer.deserialize(1, serializer.serialize(record)) == record
    with pytest.raises(SerializationError, match="damaged"):
        serializer.deserialize(1, b'[1, "x", null]')
