"""What becomes of rows whose request failed."""

from __future__ import annotations

import pyarrow as pa

from outfall.async_sink import ErrorAction
from outfall.errors import TargetError
from outfall.versioned import KeyedRow, Outcomes

ROW = KeyedRow("a", "a", 1, "", pa.record_batch({"id": ["a"]}), 0)


def test_a_fatal_failure_fails_the_query_also_without_an_error_of_its_own() -> None:
    outcomes = Outcomes()
    outcomes.failed([ROW], ErrorAction.FATAL, "no such table")
    error = outcomes.result(lambda answers: None).error
    assert isinstance(error, TargetError)
    assert "No such table" in str(error)
    own = OSError("its own")
    outcomes.failed([ROW], ErrorAction.FATAL, "again", error=own)
    assert outcomes.result(lambda answers: None).error is error
