"""Wrappers around wrappers around `PostgresSink`: rows arrive once, or the combination is refused."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from outfall.postgres import PostgresSink
from tests.combinations import PARTS, Place, check, parameters

ROW = "id bigint, source text, text text"
LETTER = 'row text, reason text, code text, excerpt text, step text, epoch bigint, part text, "time" timestamptz'


class Tables(Place):
    """A table, with the way of delivery that is asked for."""

    def __init__(self, dsn: str, key: str = "", **options: Any) -> None:
        self._dsn = dsn
        self._table = f"t_{secrets.token_hex(8)}"
        self._key = key
        self._options = options
        self._made = False

    def sink(self) -> Any:
        if not self._made:
            self._made = True
            self._run(f"CREATE TABLE {self._table} ({LETTER if self.letters else ROW + self._key})")
        return PostgresSink(self._dsn, self._table, **self._options)

    def read(self) -> Iterable[Mapping[str, Any]]:
        return self._run(f"SELECT * FROM {self._table}")

    def _run(self, statement: str) -> list[dict[str, Any]]:
        with psycopg.connect(self._dsn, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


PLACES: dict[str, Callable[[str], Tables]] = {
    "epochs": Tables,
    "parts": lambda dsn: Tables(dsn, parts=PARTS, offset_keys="ledger"),
    "offsets": lambda dsn: Tables(dsn, ", PRIMARY KEY (id)", offset_columns="id"),
}


@pytest.mark.parametrize(("wrappers", "sink", "word"), parameters(PLACES))
def test_rows_arrive_once_or_the_combination_is_refused(
    wrappers: tuple[str, ...], sink: str, word: str, conformance_dsn: str
) -> None:
    check(wrappers, PLACES[sink](conformance_dsn), word)
