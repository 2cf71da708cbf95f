"""Which tables are taken: what a commit of bare files would bypass is refused, and the rest can be committed to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from outfall.delta import DeltaSink
from outfall.errors import ConfigurationError
from tests.unit.support.delta_reader import newest, write_table

READERS = {"deletionVectors", "typeWidening", "timestampNtz", "columnMapping", "v2Checkpoint"}
"""Features that readers have to know too."""


def protocol(*features: str) -> dict[str, Any]:
    reading = sorted(READERS.intersection(features))
    if not reading:
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(features)}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": reading,
        "writerFeatures": list(features),
    }


def version(writer: int) -> dict[str, Any]:
    return {"minReaderVersion": 1 if writer < 5 else 2, "minWriterVersion": writer}


def load(path: Path, **options: Any) -> None:
    DeltaSink(path, **options).load()


@pytest.mark.parametrize(
    "table",
    [
        *({"protocol": version(writer)} for writer in range(1, 6)),
        *(
            {"protocol": protocol(feature)}
            for feature in (
                "appendOnly", "invariants", "checkConstraints", "generatedColumns", "columnMapping", "changeDataFeed",
                "timestampNtz", "deletionVectors", "v2Checkpoint",
            )
        ),
        {"protocol": version(4), "configuration": {"delta.enableChangeDataFeed": "true"}},
        {"configuration": {"delta.appendOnly": "true"}},
        {"protocol": protocol("columnMapping"), "configuration": {"delta.columnMapping.mode": "none"}},
        {"configuration": {"delta.setTransactionRetentionDuration": "interval 1 week"}},
        {"configuration": {"delta.setTransactionRetentionDuration": "interval 6 days 24 hours"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_table_that_is_taken_takes_commits_and_keeps_their_record(tmp_path: Path, table: dict[str, Any]) -> None:
    write_table(tmp_path, {"id": "long"}, **table)
    load(tmp_path)
    loaded = DeltaTable(tmp_path)
    properties = CommitProperties(max_commit_retries=0, app_transactions=[Transaction("ours", 7, 1)])
    added = AddAction("a.parquet", 1, {}, 1, True, '{"numRecords":1}')
    loaded.create_write_transaction([added], "append", loaded.schema(), commit_properties=properties)
    loaded = DeltaTable(tmp_path)
    loaded.create_checkpoint()
    assert DeltaTable(tmp_path).transaction_version("ours") == (None if "Retention" in str(table) else 7)
    assert list(newest(tmp_path).files) == ["a.parquet"] or "v2Checkpoint" in str(table)


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({"protocol": protocol(feature, *more)}, f"has the table feature {feature}")
        for feature, *more in (
            ["identityColumns"], ["rowTracking", "zz"], ["domainMetadata"], ["clustering", "domainMetadata"],
            ["icebergCompatV1"], ["icebergCompatV2"], ["inCommitTimestamp"], ["allowColumnDefaults"],
            ["checkpointProtection"], ["typeWidening"], ["whatever"],
        )
    ),
    ({"protocol": version(6)}, "requires version 2 of readers and 6 of writers"),
    ({"configuration": {"delta.constraints.positive": "id > 0"}}, "has a CHECK constraint"),
    ({"configuration": {"delta.enableRowTracking": "true"}}, "has row tracking"),
    ({"configuration": {"delta.enableInCommitTimestamps": "true"}}, "has in-commit timestamps"),
    ({"configuration": {"delta.universalFormat.enabledFormats": "iceberg"}}, "has UniForm"),
    ({"metadata": {"id": {"delta.invariants": "{}"}}}, "column 'id' of .* has an invariant"),
    ({"metadata": {"id": {"delta.generationExpression": "1"}}}, "column 'id' of .* has an expression"),
    ({"metadata": {"id": {"delta.identity.start": 1}}}, "column 'id' of .* has an identity"),
    ({"metadata": {"id": {"CURRENT_DEFAULT": "1"}}}, "column 'id' of .* has a default"),
    (
        {"metadata": {"id": {"__CHAR_VARCHAR_TYPE_STRING": "struct<v:varchar(2),a:array<char(2)>>"}}},
        "column 'id' of .* has a CHAR or VARCHAR inside",
    ),
    ({"configuration": {"delta.setTransactionRetentionDuration": "interval 6 days 23 hours"}}, "removes transaction"),
    ({"configuration": {"delta.setTransactionRetentionDuration": "a while"}}, "removes transaction"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "reason"), REFUSED, ids=str)
def test_what_bare_files_would_bypass_is_refused(tmp_path: Path, table: dict[str, Any], reason: str) -> None:
    write_table(tmp_path, {"id": "long"}, **table)
    with pytest.raises(ConfigurationError, match=reason) as refused:
        load(tmp_path)
    assert refused.value.why
    assert refused.value.do


def test_a_nested_column_that_writers_check_is_refused(tmp_path: Path) -> None:
    field = {"name": "x", "type": "long", "nullable": True, "metadata": {"delta.invariants": "{}"}}
    inside = {"type": "struct", "fields": [field]}
    write_table(tmp_path, {"l": {"type": "array", "elementType": inside, "containsNull": True}})
    with pytest.raises(ConfigurationError, match=r"column 'l\.x' of .* has an invariant"):
        load(tmp_path)


@pytest.mark.parametrize("options", [{"write_mode": "overwrite_partitions"}, {"on_existing": "overwrite"}], ids=str)
@pytest.mark.parametrize(
    "table",
    [
        {"configuration": {"delta.appendOnly": "true"}},
        {"protocol": version(4), "configuration": {"delta.enableChangeDataFeed": "TRUE"}},
        {"protocol": protocol("deletionVectors")},
    ],
    ids=str,
)
def test_who_removes_rows_is_refused_where_that_asks_for_more(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any]
) -> None:
    write_table(tmp_path, {"id": "long"}, **table)
    load(tmp_path)
    with pytest.raises(ConfigurationError):
        load(tmp_path, **options)


def test_properties_of_a_table_that_is_created_are_looked_at_too(tmp_path: Path) -> None:
    given = json.dumps({"delta.enableRowTracking": True})
    with pytest.raises(ConfigurationError, match="configuration: the table has row tracking"):
        DeltaSink(tmp_path, create_table="if_missing", configuration=given)  # type: ignore[arg-type]
