"""No error and no log line holds more of a rejected row than `log_rows` permits."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from outfall.async_sink import RefusedEntry, RequestOutcome
from outfall.dead_letter import DeadLetter
from outfall.errors import OutfallError, ValueRefusedError
from outfall.http import HttpSink
from outfall.http.transport import Response
from outfall.row_logging import LogRows, RowLog
from outfall.values import rows_to_batch
from outfall.wrappers import ExactlyOnceOptions
from outfall.wrappers.dead_lettering import _summary
from tests.unit.support.async_destination import Answer, opened
from tests.unit.support.http_in_time import opened as http_opened

ROW = '{"id": 4711, "name": "Ringelnatz", "tags": ["Kuttel", 12345], "ok": true}'
MODES: list[LogRows] = ["none", "keys", "full"]


def text_of(error: BaseException) -> str:
    """All that a traceback shows, causes included."""
    return "".join(traceback.format_exception(error))


def test_a_row_is_called_by_its_position_its_key_or_its_beginning() -> None:
    names = [RowLog(mode, ["id"]).name("row 7 of its task", ROW) for mode in MODES]
    assert names == ["row 7 of its task", 'the row with key {"id": 4711}', f"row 7 of its task, {ROW}"]
    assert RowLog("keys").name("a row", ROW) == "a row"
    assert RowLog("keys", ["id"]).name("a row", "no JSON") == "a row"
    long = RowLog("keys", ["id"]).name("a row", '{"id": "' + "x" * 500 + '"}')
    assert len(long) < 80
    assert len(RowLog("full").name("a row", "x" * 5000)) < 250


@pytest.mark.parametrize("log_rows", MODES)
def test_neither_a_row_nor_its_destination_controls_a_terminal(log_rows: LogRows) -> None:
    evil = "\x1b[2J\x9b2J\u202e\n"
    row = json.dumps({"id": evil}, ensure_ascii=False)
    assert RowLog(log_rows, ["id"]).described("a row", row, evil).isprintable()


def test_the_values_of_a_row_are_masked_in_what_a_destination_says_of_it() -> None:
    said = "4711: Ringelnatz, \\u0052ingelnatz, Kuttel and 12345 are not ok"
    assert RowLog("none", ["id"]).quoted(said, [ROW]) == "***: ***, ***, *** and *** are not ok"
    assert RowLog("keys", ["id"]).quoted(said, [ROW]) == "4711: ***, ***, *** and *** are not ok"
    assert RowLog("full", ["id"]).quoted(said, [ROW]) == said


@pytest.mark.parametrize("log_rows", MODES)
def test_a_rejected_entry_is_not_told(log_rows: LogRows) -> None:
    def refuse(entries: Sequence[str], number: int) -> Answer:
        dead = [RefusedEntry(entry, f"no {entry}", "400", f"what is {entry}?") for entry in entries]
        return 0.01, RequestOutcome(dead=dead)

    partition, _ = opened(refuse, log_rows=log_rows)
    partition.write_batch(["Ringelnatz"])
    with pytest.raises(ValueRefusedError) as caught:
        partition.flush(True)
    assert ("Ringelnatz" in text_of(caught.value)) == (log_rows == "full")
    taken: list[DeadLetter] = []
    partition, _ = opened(refuse, log_rows=log_rows)
    partition.dead_letters_to(taken.extend)
    partition.write_batch(["Ringelnatz"])
    partition.flush(True)
    assert (taken[0].row, taken[0].excerpt) == ("Ringelnatz", "what is Ringelnatz?")
    assert ("Ringelnatz" in _summary(taken[0])) == (log_rows == "full")


@pytest.mark.parametrize("log_rows", MODES)
@pytest.mark.parametrize("status", [401, 422, 503])
def test_a_response_that_echoes_a_row_is_masked(
    log_rows: LogRows, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"error": "name=Ringelnatz of 4711 is bad"}'
    partition, _ = http_opened(
        lambda now: Response(status, {}, body), log_rows=log_rows, key_column="id", idempotency="item", max_retries=1
    )
    rows = [{"id": 4711, "name": "Ringelnatz"}]
    if status == 503:
        rows.insert(0, {"id": 1, "name": "Kuttel"})
    partition.write_record_batch(pa.RecordBatch.from_pylist(rows))
    with caplog.at_level(logging.DEBUG), pytest.raises(OutfallError) as caught:
        partition.flush(True)
    assert str(status) in str(caught.value)
    text = text_of(caught.value) + caplog.text
    assert ("Ringelnatz" in text) == (log_rows == "full")
    assert ("4711" in text) == (log_rows != "none")
    assert "is bad" in text


def test_a_sink_that_permits_nothing_has_no_value_shown() -> None:
    assert _summary(DeadLetter(ROW, "no Ringelnatz", "sink", 1, code="x")) == "one of them is a record: no *** (x)"


def test_values_without_a_common_type_are_not_quoted() -> None:
    values: list[Any] = [{"a": 1}, {"a": "Ringelnatz"}]
    with pytest.raises(ValueRefusedError, match=r"Python types int, str \(ArrowInvalid|ArrowTypeError\)") as caught:
        rows_to_batch(values)
    assert "Ringelnatz" not in text_of(caught.value)


def test_the_option_ignores_case_and_is_also_that_of_a_wrapper() -> None:
    sink = HttpSink("http://127.0.0.1:9", log_rows="NONE")  # type: ignore[arg-type]
    assert sink.delegate.http.log_rows == "none"
    assert ExactlyOnceOptions.model_fields["log_rows"].default == "keys"
