"""What the tests of delivery by parts share: rows, and epochs of tasks whose parts they choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.protocol.messages import TaskResponse, Ticket
from outfall.testing import LocalDriver
from tests.integration.support.sql import Table

Row = dict[str, Any]


def numbered(*ids: int) -> list[Row]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def keyed(*ids: int) -> list[tuple[str, Row]]:
    """Rows with the key that routes them."""
    return [(str(row["id"]), row) for row in numbered(*ids)]


def one_task(
    driver: LocalDriver, ticket: Ticket, epoch: int, parts: dict[str, Sequence[int]], *, number: int = 0, **more: Any
) -> TaskResponse:
    """Run a task that writes several parts, row by row in turn, as Spark's batches hold them."""
    longest = max((len(ids) for ids in parts.values()), default=0)
    values: list[tuple[str | None, list[Any]]] = [
        (part, numbered(ids[place])) for place in range(longest) for part, ids in parts.items() if place < len(ids)
    ]
    return driver.run_task(ticket, epoch, number, values, **more)


def parts_sink(target: Table, parts: int = 3, **options: Any) -> Any:
    """Make a sink whose parts are numbered in the ledger."""
    return target.sink(parts=parts, **({"offset_keys": "ledger"} | options))


def run(sink: Any, recovery: str, epoch: int, *ids: int) -> Any:
    """Run one epoch of keyed rows by a driver of its own, as after a restart."""
    return LocalDriver(sink, recovery).run_epoch(epoch, [keyed(*ids)])
