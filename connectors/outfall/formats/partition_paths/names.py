"""Names of directories as Spark writes them, and those that its readers skip."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.strings import concat, data_of, literal

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""What stands for NULL and for the empty string; readers take it for NULL."""

MAX_BYTES = 255
"""Of a directory's name, on every file system in use."""

SKIPPED_END = "._COPYING_"
"""Spark's readers skip every directory whose name ends so: Hadoop copies into such ones."""

# ExternalCatalogUtils.charToEscape. NUL is not in it, and no path can hold one.
_ESCAPED = bytes(range(1, 0x20)) + b"\"#%'*/:=?\\\x7f{[]^"
_PLAIN = bytes(set(range(256)) - set(_ESCAPED))
_TABLE = {code: f"%{code:02X}" for code in _ESCAPED}


def escape_text(text: str) -> str:
    """Escape a name or a value as Spark's `ExternalCatalogUtils.escapePathName` does."""
    return text.translate(_TABLE)


def escape(texts: pa.Array) -> pa.Array:
    """Escape an array of `TEXT` in the same way; NULL stays NULL."""
    found = set(data_of(texts).to_pybytes().translate(None, _PLAIN))
    # The percent sign first: the others' escapes begin with it.
    for code in sorted(found, key=lambda code: (code != ord("%"), code)):
        texts = pc.replace_substring(texts, chr(code), _TABLE[code])
    return texts


def level(name: str, values: pa.Array) -> pa.Array:
    """Make the directories' names of a column or a level `name=`, from values of `TEXT` that are not escaped yet."""
    nothing = pc.fill_null(pc.equal(values, literal("")), True)
    return concat(literal(f"{escape_text(name)}="), pc.if_else(nothing, literal(NULL_NAME), escape(values)))


def check_level(name: str | None, sample: str) -> None:
    """Refuse a directory that Spark's readers skip, that leaves the root, or that no file system takes.

    Args:
        name: what stands before the first `=`, not escaped; `None` where there is none.
        sample: the longest name that the directory can have, escaped; it begins and ends as all its names do.

    Raises:
        ValueError: saying why.
    """
    if name == "":
        raise ValueError(f"the level {sample!r} has no name before its =")
    if "\0" in sample:
        raise ValueError(f"the level {sample!r} holds a NUL character, which no path can hold")
    if sample in ("", ".", ".."):
        raise ValueError(f"the level {sample!r} is no directory of its own")
    if sample.startswith(".") or (name is None and sample.startswith("_")):
        raise ValueError(f"the level {sample!r} begins with {sample[0]!r}, and Spark's readers skip such directories")
    if sample.endswith(SKIPPED_END):
        raise ValueError(f"the level {sample!r} ends with {SKIPPED_END!r}, and Spark's readers skip such directories")
    if len(sample.encode()) > MAX_BYTES:
        raise ValueError(f"the level {sample[:40]!r}… is longer than the {MAX_BYTES} bytes of a directory's name")
