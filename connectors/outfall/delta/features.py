"""The supported tables: those whose guarantees hold after a commit of finished files.

A commit adds files as they are. Other duties of writers (PROTOCOL.md, "Table Features") are not performed: rows that
violate a constraint would be written, row ids and generated values would be missing, and no reader would report it. A
feature is therefore supported only if it has no duty for such a commit. All others are rejected, including unknown
ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from deltalake import DeltaTable

from outfall.delta.char_varchar import DECLARED, is_nested
from outfall.errors import ConfigurationError

_ALLOWED = frozenset(
    {
        # Their duties depend on columns or properties, which are checked.
        "appendOnly", "invariants", "checkConstraints", "generatedColumns", "columnMapping", "changeDataFeed",
        # They have no duty for added files: types, files with deleted rows, and the form of checkpoints.
        "timestampNtz", "deletionVectors", "v2Checkpoint",
    }
)  # fmt: skip
"""Features by their names in the protocol. deltalake commits to tables that have them."""

_NEWEST_READER, _LEGACY_WRITER, _WITH_FEATURES = 3, 5, 7
"""Protocol versions. Writers up to 5 have a fixed set of features, which are all supported; 6 adds identities."""

_SHORTEST_RETENTION = timedelta(days=7)
"""Of transaction identifiers. After a longer standstill, a query's own identifiers are missing, and it is rejected."""

_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "an expression that generates it",
    "delta.identity.start": "an identity",
    "delta.identity.step": "an identity",
    "CURRENT_DEFAULT": "a default",
}
"""Metadata of columns whose values writers must check or create."""

_PROPERTIES = (
    (r"delta\.constraints\..+", (), "a CHECK constraint", "rows that violate it would be written"),
    (r"delta\.columnMapping\.mode", ("none",), "column mapping", "files would have wrong column names"),
    (r"delta\.enableRowTracking", ("false",), "row tracking", "the rows would have no ids"),
    (r"delta\.enableInCommitTimestamps", ("false",), "in-commit timestamps", "commits would have none"),
    (r"delta\.enableTypeWidening", ("false",), "type widening", "deltalake does not write to such tables"),
    (
        r"delta\.enableIcebergCompatV\d+",
        ("false",),
        "Iceberg compatibility",
        "files would lack data that Iceberg requires",
    ),
    (
        r"delta\.universalFormat\.enabledFormats",
        ("",),
        "UniForm",
        "the metadata of the other format would not be written",
    ),
)
_WHEN_OVERWRITING = (
    (r"delta\.appendOnly", ("false",), "appendOnly", "rows must never be removed, and the sink would replace some"),
    (
        r"delta\.enableChangeDataFeed",
        ("false",),
        "a change data feed",
        "replaced rows would appear as removed and added, changed or not",
    ),
)
"""Table properties: name, harmless values, the function that they enable, and its consequence."""

_DO = "use another table, or disable it there"

_INTERVAL = re.compile(r"\s*(\d+)\s*(nano|micro|milli|)(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_PREFIXES = {"": 1.0, "milli": 1e-3, "micro": 1e-6, "nano": 1e-9}


def check_table_features(where: str, table: DeltaTable, *, overwrites: bool) -> None:
    """Reject a table whose guarantees a commit of finished files would violate.

    `overwrites` tells whether commits may remove files. `ConfigurationError` has the feature, its consequence and the
    remedy.
    """
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    unknown = sorted(features - _ALLOWED)
    if unknown:
        raise ConfigurationError(
            f"{where} has the table feature {unknown[0]}",
            why="it requires more of writers than finished files, or is unknown",
            do="use a table without it; ALTER TABLE … DROP FEATURE removes some features, and those that"
            " leave checkpointProtection behind only with TRUNCATE HISTORY",
        )
    writer = protocol.min_writer_version
    if protocol.min_reader_version > _NEWEST_READER or not (writer <= _LEGACY_WRITER or writer == _WITH_FEATURES):
        raise ConfigurationError(
            f"{where} requires version {protocol.min_reader_version} of readers and {writer} of writers",
            why=f"deltalake writes to tables of writer versions up to {_LEGACY_WRITER}, and {_WITH_FEATURES}",
            do="use another table; an upgrade to version 7 lists its features individually, and unused ones can"
            " then be dropped",
        )
    if overwrites and "deletionVectors" in features:
        raise ConfigurationError(
            f"{where} has the table feature deletionVectors",
            why="the sink must replace files, and deltalake cannot remove a file with deleted rows",
            do='omit write_mode and on_existing="overwrite", or use a table without it',
        )
    check_configuration(where, table.metadata().configuration, overwrites=overwrites)
    for column, found in _marked(json.loads(table.schema().to_json())["fields"], ""):
        raise ConfigurationError(
            f"column {column!r} of {where} has {found}",
            why="it would not be applied to the rows, because a commit adds files as they are",
            do="use another table, or remove it from the column",
        )


def check_configuration(where: str, configuration: Mapping[str, str], *, overwrites: bool) -> None:
    """Reject table properties that require more of a writer than finished files. See `check_table_features`."""
    rules = (*_PROPERTIES, *(_WHEN_OVERWRITING if overwrites else ()))
    for name, value in sorted(configuration.items()):
        for pattern, harmless, what, why in rules:
            if re.fullmatch(pattern, name) and value.lower() not in harmless:
                raise ConfigurationError(f"{where} has {what} ({name}={value})", why=why, do=_DO)
    retention = configuration.get("delta.setTransactionRetentionDuration")
    if retention is not None and not _lasts(retention):
        raise ConfigurationError(
            f"{where} removes transaction identifiers early (delta.setTransactionRetentionDuration={retention})",
            why="they record which epochs are in the table, and must be kept for at least"
            f" {_SHORTEST_RETENTION.days} days",
            do="set it to an interval of days or weeks that is longer than any pause of the query, or remove it",
        )


def _lasts(text: str) -> bool:
    """Whether an interval in Delta's syntax (`interval 1 week 2 days`) is long enough. An invalid interval is not."""
    rest = re.sub(r"^\s*interval\s", "", text, flags=re.IGNORECASE)
    seconds, at = 0.0, 0
    while at < len(rest):
        found = _INTERVAL.match(rest, at)
        if found is None:
            return False
        seconds += int(found[1]) * _PREFIXES[found[2].lower()] * _SECONDS[found[3].lower()]
        at = found.end()
    return seconds >= _SHORTEST_RETENTION.total_seconds()


def _marked(fields: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield columns with values that writers must check or create, including nested ones."""
    for field in fields:
        name = f"{path}{field['name']}"
        yield from ((name, what) for key, what in _COLUMNS.items() if key in field["metadata"])
        if is_nested(field["metadata"]) or (path and DECLARED in field["metadata"]):
            yield name, "a CHAR or VARCHAR inside"
        yield from _marked_inside(field["type"], name)


def _marked_inside(kind: Any, name: str) -> Iterator[tuple[str, str]]:
    if not isinstance(kind, dict):
        return
    yield from _marked(kind.get("fields", ()), f"{name}.")
    for inside in ("elementType", "keyType", "valueType"):
        yield from _marked_inside(kind.get(inside), name)
