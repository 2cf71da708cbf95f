"""The options of every sink whose writes carry versions."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from outfall.async_sink import AsyncSinkOptions, AsyncSinkSettings
from outfall.options import Duration

DuplicateKeys = Literal["error", "count"]
Deletes = Literal["tombstone", "remove"]


class VersionedOptions(AsyncSinkOptions):
    """Options that a sink with versions has in addition to those of the asynchronous base."""

    order_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column that decides between two rows of one key in an epoch: the greater value wins, NULL is"
        " the least. Of equal values, the greater hash of the row wins. A later epoch always wins over an earlier one.",
    )
    sequence_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column that orders all rows of a key, instead of `order_column`: a row changes nothing if one"
        " with a greater value was written, or deleted the key, in whatever epoch, run or query, and counts as"
        " `changes_stale`. Of equal values, the greater hash of the row wins. Rows that were written without it are"
        " older. Strings compare byte by byte, so that numbers in them need leading zeros.",
    )
    duplicate_keys: DuplicateKeys = Field(
        default="error",
        description="Without `order_column`: whether two different rows of one key in an epoch fail the query, or are"
        " counted as `replaced_rows`. Then the row with the greater hash wins.",
    )
    delete_marker: str | None = Field(
        default=None,
        min_length=1,
        description="A boolean column that is not stored. If it is true, the stored row of the key is removed.",
    )
    versions: bool = Field(
        default=True,
        description="Whether each write carries a version that the server compares. Without it, writes cost less, a"
        " late write of an older attempt may replace a newer row, and the guarantee is at least once.",
    )
    tombstone_retention: Duration = Field(
        default=timedelta(days=1),
        description="How long the version of a deleted or expired key is kept. A task or driver that is suspended for"
        " longer could write the key again.",
    )

    @property
    def keeps_deleted(self) -> bool:
        """Whether the server keeps the version of a deleted row."""
        return True

    @property
    def ordered_by(self) -> str | None:
        """The column that orders the rows of a key, within an epoch or all of them."""
        return self.sequence_column or self.order_column

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.across_epochs:
            raise ValueError("across_epochs is not available: a row has the version of the epoch that it belongs to")
        if self.order_column and self.sequence_column:
            raise ValueError("order_column and sequence_column exclude each other: a sequence orders all rows of a key")
        for name in ("order_column", "sequence_column"):
            if self.delete_marker and self.delete_marker == getattr(self, name):
                raise ValueError(f"delete_marker is not stored, so it cannot be {name}")
            if getattr(self, name) and not self.versions:
                raise ValueError(f"{name} requires versions, which carry the order to the server")
        return self


class TombstoneOptions(VersionedOptions):
    """Options of a sink that stores versions in the rows: a deleted row leaves a tombstone or loses its version.

    A connector describes `deletes` for its server.
    """

    deletes: Deletes = "tombstone"

    @property
    def keeps_deleted(self) -> bool:
        return self.deletes == "tombstone"

    @model_validator(mode="after")
    def _marked(self) -> Self:
        if self.deletes == "remove" and not self.delete_marker:
            raise ValueError('deletes="remove" requires delete_marker')
        if self.deletes == "remove" and self.sequence_column:
            raise ValueError('deletes="remove" excludes sequence_column: an older row would write a deleted key again')
        return self


class VersionedSettings(AsyncSinkSettings, total=False):
    """The fields of `VersionedOptions` as keyword arguments of a sink's constructor."""

    order_column: str | None
    sequence_column: str | None
    duplicate_keys: DuplicateKeys
    delete_marker: str | None
    versions: bool
    tombstone_retention: timedelta | float | str
