"""Copies of the table `orders` that a sink keeps, as a client of each kind of target reads them."""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.integration.support.redis_server import RedisServer
from tests.peers.support.opensearch import OpenSearch

STAYING = 50
"""The rows that are never deleted, and whose key never changes: 0 to this number."""
_SEQUENCED = {"sequence_column": "seq", "delete_marker": "deleted"}
_UPSERT = {"write_mode": "upsert", "key_columns": "id", "order_column": "seq", "create_table": "if_missing"}
_READ = ["id", "city", "amount", "at", "note"]
_MICROSECOND = timedelta(microseconds=1)


class Copy(ABC):
    """What a driver makes like the table `orders`."""

    sink: ClassVar[str]
    """The name of the sink."""
    keeps_values: ClassVar[bool] = False
    """Whether it keeps a value that PostgreSQL does not send, and takes the operation of a change as it is.

    Else the source sends all values, and a column `deleted` marks the rows that are no more.
    """
    pause: ClassVar[float] = 1.0
    """How many seconds pass between two looks at it: reading takes some."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the arguments of the sink, which are written as JSON."""

    @abstractmethod
    def rows(self) -> list[tuple[str, ...]]:
        """Return all rows by key, with the same texts in each kind of target; none if it is not there."""

    def staying(self) -> int:
        """Return how many of the rows are there that are never deleted."""
        return sum(int(row[0]) < STAYING for row in self.rows())


class DeltaCopy(Copy):
    """A Delta table, where deleted rows stay, with their sequence."""

    sink = "delta"

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "orders")

    def options(self) -> dict[str, Any]:
        return {"path": self._path, **_UPSERT}

    def rows(self) -> list[tuple[str, ...]]:
        try:
            return _texts(DeltaTable(self._path).to_pyarrow_table())
        except TableNotFoundError:
            return []


class IcebergCopy(Copy):
    """An Iceberg table, likewise."""

    sink = "iceberg"

    def __init__(self, folder: Path) -> None:
        self._catalog = {
            "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"
        }  # fmt: skip
        self._client = load_catalog("default", **self._catalog)
        self._client.create_namespace("db")

    def options(self) -> dict[str, Any]:
        return {"table": "db.orders", "catalog_options": self._catalog, "partition_by": "bucket(4, id)", **_UPSERT}

    def rows(self) -> list[tuple[str, ...]]:
        try:
            return _texts(self._client.load_table("db.orders").scan().to_arrow())
        except NoSuchTableError:
            return []


class RedisCopy(Copy):
    """Hashes in a database of Redis, which keeps the sequences of deleted keys."""

    sink = "redis"
    pause = 0.2

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._client = server.client()
        self._client.flushall()

    def options(self) -> dict[str, Any]:
        return {"url": self._server.url, "key": "order:{id}", **_SEQUENCED}

    def rows(self) -> list[tuple[str, ...]]:
        reading = self._client.pipeline(transaction=False)
        for key in self._client.scan_iter("order:*", count=1000):
            reading.hgetall(key)
        # One that was deleted in between has no field.
        return _sorted(_text(found | {"at": _moment(found.get("at"))}) for found in reading.execute() if found)


class OpenSearchCopy(Copy):
    """Documents of an index, where deleted ones stay as tombstones, with their sequence."""

    sink = "opensearch"

    def __init__(self, cluster: OpenSearch) -> None:
        self._cluster = cluster
        self._index = f"orders-{uuid.uuid4().hex}"
        # As the recipe says: a cluster maps the first number itself, as a long, in which no such sequence fits.
        mapped = {"properties": {"seq": {"type": "keyword"}}}
        status, answer = cluster.ask("PUT", f"/{self._index}", {"mappings": mapped})
        assert status == 200, answer

    def options(self) -> dict[str, Any]:
        return {"url": self._cluster.url, "index": self._index, "key_columns": ["id"], **_SEQUENCED}

    def rows(self) -> list[tuple[str, ...]]:
        found = self._cluster.documents(self._index).values()
        return _sorted(_text(_values(row)) for row in found if "outfall_deleted" not in row)


def _texts(rows: pa.Table) -> list[tuple[str, ...]]:
    there = rows.filter(pc.invert(rows["deleted"])).select(_READ)
    return _sorted(map(_text, there.to_pylist()))


def _text(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts that the queries of databases return for a row."""
    at, note = row.get("at"), row.get("note")
    moment = None if at is None else (at - datetime.fromtimestamp(0, UTC)) // _MICROSECOND
    digest = None if note is None else hashlib.sha256(note.encode()).hexdigest()
    values = (row["id"], row.get("city"), row.get("amount"), moment, digest)
    return tuple("NULL" if value is None else str(value) for value in values)


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row that is stored as JSON, or like it: numbers without zeros at their end."""
    amount = row.get("amount")
    exact = None if amount is None else Decimal(str(amount)).quantize(Decimal("0.01"))
    return {**row, "amount": exact, "at": _moment(row.get("at"))}


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _sorted(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(rows, key=lambda row: int(row[0]))
