"""The options of `upsert` and `delete`, which table sinks share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from outfall.delta import DeltaSink
from outfall.delta import sink_from_options as delta_by_name
from outfall.errors import ConfigurationError
from outfall.iceberg import IcebergSink
from outfall.iceberg import sink_from_options as iceberg_by_name
from outfall.tables.sink import TableSink

SINKS = pytest.mark.parametrize(
    "made", [partial(DeltaSink, "/t"), partial(IcebergSink, "db.t")], ids=["delta", "iceberg"]
)

UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"write_mode": "upsert"}, "write_mode upsert needs key_columns"),
        ({"write_mode": "delete"}, "write_mode delete needs key_columns"),
        ({"key_columns": "id"}, "key_columns is an option of the write modes upsert and delete"),
        ({"write_mode": "delete", "key_columns": "id", "order_column": "v"}, "order_column is an option of write_mode"),
        ({"delete_marker": "gone"}, "delete_marker is an option of write_mode upsert"),
        ({**UPSERT, "key_columns": "id,id"}, "names the column 'id' twice"),
        ({**UPSERT, "update_columns": "id"}, "update_columns contains the key 'id'"),
        ({**UPSERT, "delete_marker": "id"}, "delete_marker cannot be a key"),
        ({**UPSERT, "delete_marker": "v", "order_column": "v"}, "delete_marker is not stored"),
        (
            {"write_mode": "delete", "key_columns": "id", "create_table": "if_missing"},
            "create_table excludes write_mode",
        ),
        ({**UPSERT, "max_merge_bytes": "1 KiB"}, "max_merge_bytes"),
    ],
    ids=str,
)
@SINKS
def test_options_of_keys_that_contradict_each_other_are_refused(
    made: Callable[..., TableSink], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        made(**options)


@SINKS
def test_only_an_upsert_takes_rows_that_come_again(made: Callable[..., TableSink]) -> None:
    modes = {mode: made(**options).output_modes() for mode, options in {
        "append": {}, "upsert": UPSERT, "delete": {**UPSERT, "write_mode": "delete"}}.items()}  # fmt: skip
    assert modes == {"append": ("append",), "upsert": ("append", "update", "complete"), "delete": ("append",)}


@pytest.mark.parametrize(
    ("named", "place"),
    [(delta_by_name, {"path": "/t"}), (iceberg_by_name, {"table": "db.t"})],
    ids=["delta", "iceberg"],
)
def test_upserts_are_named_in_sparks_words(named: Callable[..., Any], place: dict[str, str]) -> None:
    sink = named({**place, "writeMode": "UPSERT", "keyColumns": "a, b", "orderColumn": "o", "maxMergeBytes": "2 GiB"})
    options = sink.options
    assert (options.write_mode, options.key_columns, options.order_column, options.max_merge_bytes) == (
        "upsert", ("a", "b"), "o", 2 << 30,
    )  # fmt: skip
