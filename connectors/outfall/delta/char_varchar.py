"""`CHAR` and `VARCHAR` columns: to Delta they are strings, and Spark keeps the declared type in their metadata.

Only Spark's own writer checks the lengths. Its readers compare a `CHAR` with a padded value, so a shorter value in a
file is not found by a filter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.strings import refuse_rows

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata of a column with its declared type, `varchar(3)`; of a nested column it has all types inside."""

_TYPE = re.compile(r"(char|varchar)\((\d+)\)", re.IGNORECASE)


def is_nested(metadata: Mapping[str, str]) -> bool:
    """Whether a column has lengths inside, which `check_length` does not check."""
    return DECLARED in metadata and not _TYPE.fullmatch(metadata[DECLARED])


def check_length(field: pa.Field, column: pa.Array) -> None:
    """Raise `ValueRefusedError` for values that the column's declared type excludes; Spark counts code points."""
    found = _TYPE.fullmatch((field.metadata or {}).get(DECLARED.encode(), b"").decode())
    if found is None:
        return
    kind, length = found[1].upper(), int(found[2])
    exact = kind == "CHAR"
    refuse_rows(
        (pc.not_equal if exact else pc.greater)(pc.utf8_length(column), length),
        f"column {field.name!r} has a value that does not have {length} characters, as the table's {kind}({length})"
        if exact
        else f"column {field.name!r} has a value of more than {length} characters, the length of the table's"
        f" {kind}({length})",
        "Spark pads the values of such a column with blanks, and its filters do not find others"
        if exact
        else "Spark rejects such a value too",
        f"write rpad({field.name}, {length}, ' ') if no value is longer" if exact else "shorten or remove such values",
    )
