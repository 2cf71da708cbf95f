"""A response of `BatchWriteItem` says what is left, or it cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("boto3")

from outfall.dynamodb.sink import DynamoDBPartition, _parsed
from outfall.errors import TransientError
from outfall.versioned import Answer, KeyedRow, Outcomes, Version

ROWS = [KeyedRow((key,), "{}", 2, "", pa.record_batch({"id": [1]}), 0) for key in ("1.00", "2", "3")]


def left(answer: dict[str, Any]) -> list[KeyedRow]:
    """Return the rows that are sent again after an answer."""
    made: Any = object.__new__(DynamoDBPartition)
    made.options, made._keys = SimpleNamespace(table="arn:aws:dynamodb:eu-west-1:1:table/t"), {"id": "N"}
    made._call = lambda *_, **more: answer
    outcomes = Outcomes()
    made._batch(ROWS, outcomes)
    return list(outcomes.result(lambda answers: None).retry)


def test_an_answer_without_what_is_left_is_unreadable() -> None:
    with pytest.raises(TransientError, match="UnprocessedItems"):
        left({})


@pytest.mark.parametrize("foreign", ["", "version 3", "7", "1_0", "A" * 16])
def test_a_version_that_outfall_has_not_written_ends_the_comparison(foreign: str) -> None:
    assert Version(1 << 60, "t").answer("a", *_parsed(foreign)) is Answer.STALE
