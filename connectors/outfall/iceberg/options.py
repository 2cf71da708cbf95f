"""The options of `IcebergSink`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from outfall.options import Duration, Pairs, parse_pairs
from outfall.tables.key_options import KeyArguments, KeyOptions
from outfall.tables.options import CommonArguments
from outfall.unencrypted_secrets import Sent, UnencryptedSecrets, UnencryptedSecretsSettings, secret_entries
from outfall.urls import HTTP, scheme_of

MAIN = "main"

_FUNCTION = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_PLAIN = re.compile(r"[^`(),\s]+(?: +[^`(),\s]+)*")
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_TIMES = {
    "years": "year", "year": "year", "months": "month", "month": "month",
    "days": "day", "day": "day", "date": "day", "hours": "hour", "hour": "hour", "date_hour": "hour",
}  # fmt: skip
_KNOWN = "years(…), months(…), days(…), hours(…), bucket(16, …), truncate(4, …) and a column name alone"
_RESERVED = re.compile(
    r"operation|(added|deleted|removed|total|replaced|created|kept)-.+|changed-partition-count|partitions?[-.].*|outfall\..*"
)
"""Names in a snapshot summary that Iceberg fills in (its specification, appendix F), and those of Outfall."""


@dataclass(frozen=True)
class PartitionTerm:
    """One term of `partition_by`, in the syntax of Spark's `PARTITIONED BY`."""

    transform: str
    """In Iceberg's syntax: `identity`, `day`, `bucket[16]`, …"""
    column: str
    suffix: str
    """The suffix of the partition field's name, as in Iceberg for Spark."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a term; `ValueError` states the problem."""
        function = _FUNCTION.fullmatch(text.strip())
        if function is None:
            return cls("identity", _column(text), "")
        name, arguments = function[1].lower(), _split(function[2])
        if name in _TIMES and len(arguments) == 1:
            return cls(_TIMES[name], _column(arguments[0]), f"_{_TIMES[name]}")
        if name == "identity" and len(arguments) == 1:
            return cls("identity", _column(arguments[0]), "")
        if name in ("bucket", "truncate"):
            # Iceberg accepts the arguments of truncate in either order.
            if len(arguments) == 2 and arguments[1].isdecimal() and not arguments[0].isdecimal():
                arguments.reverse()
            if len(arguments) != 2 or not arguments[0].isdecimal() or not 0 < int(arguments[0]) < 1 << 31:
                raise ValueError(f"{text!r}: write {name}(16, column), with a number above 0")
            return cls(f"{name}[{int(arguments[0])}]", _column(arguments[1]), "_" + name.removesuffix("ate"))
        if name in _TIMES or name == "identity":
            raise ValueError(f"{text!r}: {name}(…) takes one column")
        raise ValueError(f"{text!r}: {name}(…) does not exist; there are {_KNOWN}")


def _column(text: str) -> str:
    text = text.strip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        return quoted[1].replace("``", "`")
    if _PLAIN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a column name; write names with other characters in backquotes")
    return text


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses and backquotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, character in enumerate(text):
        quoted ^= character == "`"
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0 and not quoted:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _parse_terms(value: Any) -> tuple[str, ...]:
    terms = _split(value) if isinstance(value, str) else value
    if not isinstance(terms, list | tuple) or not all(isinstance(term, str) for term in terms):
        raise ValueError("must be a list of terms, or a string with terms separated by commas")
    if len(terms) == 1 and not terms[0]:
        return ()
    for term in terms:
        PartitionTerm.parse(term)
    return tuple(terms)


class IcebergArguments(UnencryptedSecretsSettings, CommonArguments, KeyArguments, total=False):
    """The options of all table formats as keyword arguments; see `IcebergOptions`."""


class IcebergOptions(UnencryptedSecrets, KeyOptions):
    """The options of `IcebergSink`, in its constructor and in Spark."""

    separator: ClassVar[str | None] = "."

    table: str | None = Field(
        default=None, description="The table with its namespace: `namespace.table`. Either this or `table_column`."
    )
    catalog: str = Field(
        default="default",
        description="The name of the catalog. pyiceberg uses it to find its configuration on the driver"
        " (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__…`).",
    )
    catalog_options: Pairs = Field(
        default={},
        description="pyiceberg properties of the catalog and of FileIO, as a mapping or a JSON object: `type`, `uri`,"
        " `warehouse`, `credential`, `s3.endpoint`, … They override the configuration of `catalog`. Secrets"
        " accept `env:NAME` and `file:PATH`.",
    )
    branch: str | None = Field(
        default=None,
        min_length=1,
        description="The branch that epochs are committed to. It must exist. Default: `main`.",
    )
    partition_by: Annotated[tuple[str, ...], BeforeValidator(_parse_terms)] = Field(
        default=(),
        description="Partitioning of a created table, in Spark's syntax: `days(ts)`, `hours(ts)`, `months(ts)`,"
        " `years(ts)`, `bucket(16, id)`, `truncate(4, name)`, or a column. An existing table keeps its"
        " partitioning.",
    )
    max_snapshot_age: Duration | None = Field(
        default=None,
        description="Expire older snapshots after each epoch. The newest five of each branch, and snapshots of branches"
        " and tags, are kept. Removes metadata only, no data files.",
    )
    snapshot_properties: Annotated[dict[str, str], BeforeValidator(parse_pairs)] = Field(
        default={},
        description="Additional entries of the snapshot summary, as a mapping or a JSON object.",
    )

    def secrets_sent(self) -> Iterator[Sent]:
        # Only what these options say: pyiceberg's own configuration may have more, and is on the driver only.
        secrets = tuple(name for name in self.catalog_options if name in ("credential", "token"))
        headers = {name: value for name, value in self.catalog_options.items() if name.startswith("header.")}
        for name in ("uri", "oauth2-server-uri"):
            url = self.catalog_options.get(name, SecretStr("")).get_secret_value()
            if scheme_of(url) in HTTP:
                entries = (*secret_entries("catalog_options", headers), *(["its password"] if "@" in url else []))
                yield Sent(f"{name} of catalog_options", url, (*secrets, *entries))

    @field_validator("table")
    @classmethod
    def _has_namespace(cls, value: str | None) -> str | None:
        if value is not None:
            parts_of(value)
        return value

    @field_validator("snapshot_properties")
    @classmethod
    def _not_reserved(cls, value: dict[str, str]) -> dict[str, str]:
        reserved = sorted(name for name in value if _RESERVED.fullmatch(name))
        if reserved:
            raise ValueError(f"{', '.join(reserved)} {'is' if len(reserved) == 1 else 'are'} filled in by the commit")
        return value

    def parts_of(self, name: str) -> tuple[str, ...]:
        parts_of(name)
        return super().parts_of(name)  # A catalog makes the location of a new table from its name.

    def of_table(self, name: str) -> Self:
        return super().of_table(name).model_copy(update={"table": name})

    @property
    def identifier(self) -> str:
        """The table with its namespace, or what names the tables."""
        return self.table or self.described

    @model_validator(mode="after")
    def _one_or_many(self) -> Self:
        if (self.table is None) == (self.table_column is None):
            raise ValueError("set either table or table_column")
        return self

    @model_validator(mode="after")
    def _has_a_beginning(self) -> Self:
        if self.branch not in (None, MAIN) and self.create_table == "if_missing":
            raise ValueError("branch and create_table exclude each other: a new table has no snapshot to branch from")
        return self

    @property
    def terms(self) -> Iterator[PartitionTerm]:
        """The partition terms of a created table."""
        return map(PartitionTerm.parse, self.partition_by)

    @property
    def on(self) -> str:
        """The name of the branch."""
        return self.branch or MAIN


def parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a table's name: its namespace, and the table. `ValueError`: it has no namespace."""
    parts = tuple(name.split("."))
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise ValueError("must include the namespace, as 'namespace.table'")
    return parts
