"""Reads Delta tables on a disk by their log alone, version by version: JSON, checkpoints and Parquet files.

Written from PROTOCOL.md, and with nothing of deltalake or of the sink.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

_KINDS = {
    "string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "byte": pa.int8(),
    "double": pa.float64(), "float": pa.float32(), "boolean": pa.bool_(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


@dataclass
class Version:
    """A table as one version of it is."""

    root: Path
    number: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The active files' add actions, by the path below the root."""
    transactions: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    def apply(self, action: dict[str, Any]) -> None:
        """Change it as an action says."""
        for kind, said in action.items():
            if kind == "add":
                self.files[unquote(said["path"])] = said
            elif kind == "remove":
                self.files.pop(unquote(said["path"]), None)
            elif kind == "txn":
                self.transactions[said["appId"]] = said["version"]
            elif kind == "metaData":
                self.metadata = said
            elif kind == "protocol":
                self.protocol = said

    @cached_property
    def columns(self) -> dict[str, Any]:
        return {column["name"]: column["type"] for column in json.loads(self.metadata["schemaString"])["fields"]}

    def rows(self) -> list[dict[str, Any]]:
        return [row for path, added in self.files.items() for row in self._rows(path, added)]

    def _rows(self, path: str, added: dict[str, Any]) -> list[dict[str, Any]]:
        data = pq.ParquetFile(self.root / path).read()
        known = {name: _value(text, self.columns[name]) for name, text in (added["partitionValues"] or {}).items()}
        assert not known.keys() & set(data.column_names), f"{path} holds what the log says"
        empty = dict.fromkeys(self.columns)
        rows = [empty | row | known for row in data.to_pylist()]
        assert added["size"] == (self.root / path).stat().st_size, path
        assert json.loads(added["stats"])["numRecords"] == len(rows), path
        return rows


def _value(text: str | None, kind: str) -> Any:
    if text is None or text == "" or kind == "string":
        return text or None
    decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)
    as_arrow = pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _KINDS[kind]
    if kind == "timestamp" and not text.endswith("Z"):
        text += "Z"
    return pa.scalar(text, pa.string()).cast(as_arrow).as_py()


def versions(root: Path) -> Iterator[Version]:
    """Yield each version whose log entry is there, in order, from the oldest that can be told."""
    log = root / "_delta_log"
    entries = sorted(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    checkpoints = {int(path.name.split(".")[0]): path for path in log.glob("*.checkpoint.parquet")}
    first = entries[0]
    now = Version(root, first - 1)
    if first > 0:
        start = min(number for number in checkpoints if number >= first - 1)
        now = _from_checkpoint(root, start, checkpoints[start])
        yield _copy(now)
        entries = [number for number in entries if number > start]
    for number in entries:
        assert number == now.number + 1, f"version {now.number + 1} is missing in the log"
        for line in (log / f"{number:020}.json").read_text().splitlines():
            now.apply(json.loads(line))
        now.number = number
        yield _copy(now)


def newest(root: Path) -> Version:
    """Read the newest version, from the newest checkpoint where there is one, as readers do."""
    log = root / "_delta_log"
    checkpoints = {int(path.name.split(".")[0]): path for path in log.glob("*.checkpoint.parquet")}
    if not checkpoints:
        return list(versions(root))[-1]
    start = max(checkpoints)
    now = _from_checkpoint(root, start, checkpoints[start])
    while (entry := log / f"{now.number + 1:020}.json").exists():
        for line in entry.read_text().splitlines():
            now.apply(json.loads(line))
        now.number += 1
    return now


def _from_checkpoint(root: Path, number: int, path: Path) -> Version:
    made = Version(root, number)
    actions = pq.read_table(path)
    for action in actions.to_pylist():
        said = {
            column.name: _with_dicts(action[column.name], column.type)
            for column in actions.schema
            if action[column.name] is not None
        }
        if "remove" not in said:
            made.apply(said)
    return made


def _with_dicts(found: Mapping[str, Any], kind: pa.StructType) -> dict[str, Any]:
    """Make dicts of maps, which pyarrow 18 gives as pairs only."""
    maps = {each.name for each in kind if pa.types.is_map(each.type)}
    return {name: dict(value or ()) if name in maps else value for name, value in found.items()}


def write_table(
    root: Path,
    columns: Mapping[str, Any],
    partitioned_by: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    *,
    protocol: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Make a table without rows.

    Args:
        root: its directory.
        columns: names with types, as Delta writes them.
        partitioned_by: some of the columns.
        configuration: the table properties.
        protocol: the protocol action, by default that of readers of version 1 and writers of version 2.
        metadata: of columns, by their names.
    """
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": (metadata or {}).get(name, {})}
        for name, kind in columns.items()
    ]
    described = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitioned_by),
        "configuration": dict(configuration or {}),
        "createdTime": 1,
    }
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "CREATE TABLE"}},
        {"protocol": dict(protocol or {"minReaderVersion": 1, "minWriterVersion": 2})},
        {"metaData": described},
    ]
    log = root / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def _copy(version: Version) -> Version:
    return replace(version, files=dict(version.files), transactions=dict(version.transactions))
