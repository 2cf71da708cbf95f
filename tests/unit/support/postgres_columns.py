"""Columns as the catalogue would describe them."""

from __future__ import annotations

import re

from outfall.postgres.catalogue.columns import Kind, TableColumn

RECEIVE = {
    "text": "textrecv",
    "varchar": "varcharrecv",
    "bpchar": "bpcharrecv",
    "citext": "citextrecv",
    "mood": "enum_recv",
}


def column(type: str, name: str = "c") -> TableColumn:
    """Describe a column by its type's name in the catalogue, as `int4`, `varchar(3)`, `numeric(6,2)` or `text[]`."""
    return TableColumn(name, type, kind(type))


def kind(type: str) -> Kind:
    if type.endswith("[]"):
        element = kind(type.removesuffix("[]"))
        return Kind(f"_{element.name}", "array_recv", element.typmod, element)
    base, *numbers = re.findall(r"-?\w+", type)
    typmod = -1
    if len(numbers) == 2:
        typmod = (int(numbers[0]) << 16 | int(numbers[1]) & 0x7FF) + 4
    elif numbers and base in ("timestamp", "timestamptz", "time", "interval"):
        typmod = int(numbers[0])
    elif numbers:
        typmod = int(numbers[0]) + 4
    return Kind(base, RECEIVE.get(base, f"{base}_recv"), typmod)
