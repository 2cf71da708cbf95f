"""Which tables the sink writes to: those in which a commit of finished files keeps all that the table promises.

A commit adds files as they are. What Delta asks of writers beyond that (PROTOCOL.md, "Table Features") nobody does
then: rows that a constraint forbids would get in, row ids and generated values would be missing, and no reader would
say so. So a feature is taken where it asks nothing of such a commit; all others are refused, also those that are not
known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from deltalake import DeltaTable

from outfall.errors import ConfigurationError

_ALLOWED = frozenset(
    {
        # They ask for something only where the columns or the properties say so, and those are looked at.
        "appendOnly", "invariants", "checkConstraints", "generatedColumns", "columnMapping", "changeDataFeed",
        # They ask nothing of who adds files: types, files with deleted rows, and how checkpoints are written.
        "timestampNtz", "deletionVectors", "v2Checkpoint",
    }
)  # fmt: skip
"""Features, by their names in the protocol. deltalake commits to tables that have them."""

_NEWEST_READER, _LEGACY_WRITER, _WITH_FEATURES = 3, 5, 7
"""Protocol versions. Writers up to 5 have a fixed set of features, all of which are allowed; 6 adds identities."""

_SHORTEST_RETENTION = timedelta(days=7)
"""Of transaction identifiers: a query that stands still for longer finds its own gone, and is refused."""

_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "an expression that generates it",
    "delta.identity.start": "an identity",
    "delta.identity.step": "an identity",
    "CURRENT_DEFAULT": "a default",
}
"""Metadata of columns whose values writers check or make."""

_PROPERTIES = (
    (r"delta\.constraints\..+", (), "a CHECK constraint", "rows that it forbids would be written"),
    (r"delta\.columnMapping\.mode", ("none",), "column mapping", "files would have other names for the columns"),
    (r"delta\.enableRowTracking", ("false",), "row tracking", "the rows would have no ids"),
    (r"delta\.enableInCommitTimestamps", ("false",), "in-commit timestamps", "commits would lack theirs"),
    (r"delta\.enableTypeWidening", ("false",), "type widening", "deltalake does not write to such tables"),
    (
        r"delta\.enableIcebergCompatV\d+",
        ("false",),
        "Iceberg compatibility",
        "files would lack what Iceberg needs",
    ),
    (r"delta\.universalFormat\.enabledFormats", ("",), "UniForm", "nobody would write the other format's metadata"),
)
_WHEN_OVERWRITING = (
    (r"delta\.appendOnly", ("false",), "appendOnly", "rows are never to be removed, and the sink is to replace some"),
    (
        r"delta\.enableChangeDataFeed",
        ("false",),
        "a change data feed",
        "rows that are replaced would show there as removed and added, changed or not",
    ),
)
"""Table properties: which, what values are harmless, what is switched on else, and what would come of it."""

_DO = "name another table, or switch that off there"

_INTERVAL = re.compile(r"\s*(\d+)\s*(nano|micro|milli|)(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_PREFIXES = {"": 1.0, "milli": 1e-3, "micro": 1e-6, "nano": 1e-9}


def check_table_features(where: str, table: DeltaTable, *, overwrites: bool) -> None:
    """Refuse a table whose promises a commit of finished files would break.

    Args:
        where: the table, for texts.
        table: as it was loaded.
        overwrites: whether commits may remove files.

    Raises:
        ConfigurationError: naming what the table has, what would come of it, and what to do.
    """
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    unknown = sorted(features - _ALLOWED)
    if unknown:
        raise ConfigurationError(
            f"{where} has the table feature {unknown[0]}",
            why="it asks more of writers than finished files, or is not known here",
            do="name a table without it; ALTER TABLE … DROP FEATURE removes some",
        )
    writer = protocol.min_writer_version
    if protocol.min_reader_version > _NEWEST_READER or not (writer <= _LEGACY_WRITER or writer == _WITH_FEATURES):
        raise ConfigurationError(
            f"{where} asks for version {protocol.min_reader_version} of readers and {writer} of writers",
            why=f"deltalake writes to tables of writer versions up to {_LEGACY_WRITER}, and {_WITH_FEATURES}",
            do="name another table; an upgrade to version 7 names its features one by one, and unused ones can be"
            " dropped then",
        )
    if overwrites and "deletionVectors" in features:
        raise ConfigurationError(
            f"{where} has the table feature deletionVectors",
            why="the sink is to replace files, and deltalake cannot remove one of which some rows are deleted already",
            do='leave write_mode and on_existing="overwrite" out, or name a table without it',
        )
    check_configuration(where, table.metadata().configuration, overwrites=overwrites)
    for column, found in _marked(json.loads(table.schema().to_json())["fields"], ""):
        raise ConfigurationError(
            f"column {column!r} of {where} has {found}",
            why="it would not be applied to the rows: a commit adds files as they are",
            do="name another table, or take that from the column",
        )


def check_configuration(where: str, configuration: Mapping[str, str], *, overwrites: bool) -> None:
    """Refuse table properties that ask more of a writer than finished files. As `check_table_features` else."""
    rules = (*_PROPERTIES, *(_WHEN_OVERWRITING if overwrites else ()))
    for name, value in sorted(configuration.items()):
        for pattern, harmless, what, why in rules:
            if re.fullmatch(pattern, name) and value.lower() not in harmless:
                raise ConfigurationError(f"{where} has {what} ({name}={value})", why=why, do=_DO)
    retention = configuration.get("delta.setTransactionRetentionDuration")
    if retention is not None and not _lasts(retention):
        raise ConfigurationError(
            f"{where} forgets transaction identifiers early (delta.setTransactionRetentionDuration={retention})",
            why=f"they tell which epochs are in the table, and must last for {_SHORTEST_RETENTION.days} days at least",
            do="set it to an interval of days or weeks that is longer than any pause of the query, or remove it",
        )


def _lasts(text: str) -> bool:
    """Whether an interval, as Delta writes them (`interval 1 week 2 days`), is long enough. One that is none is not."""
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
    """Yield columns with what writers have to check or make of them, nested ones too."""
    for field in fields:
        name = f"{path}{field['name']}"
        yield from ((name, what) for key, what in _COLUMNS.items() if key in field["metadata"])
        yield from _marked_inside(field["type"], name)


def _marked_inside(kind: Any, name: str) -> Iterator[tuple[str, str]]:
    if not isinstance(kind, dict):
        return
    yield from _marked(kind.get("fields", ()), f"{name}.")
    for inside in ("elementType", "keyType", "valueType"):
        yield from _marked_inside(kind.get(inside), name)
