"""The options of sinks that can deliver by parts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from outfall.sql.options import SqlOptions


class PartOptions(SqlOptions):
    """The options of sinks whose tasks can write their rows straight into the table."""

    parts: int | None = Field(
        default=None,
        ge=1,
        description="The number of parts to which rows are routed by key (Python API only). Each part numbers its rows"
        " from 0, and each task publishes its own rows, which these numbers identify. Without it, rows are staged, and"
        " each epoch is published in one transaction.",
    )
    offset_keys: Literal["columns", "ledger"] = Field(
        default="columns",
        description="`parts`: whether columns of the table store the part and the number of each row, or only the"
        " ledger counts the rows.",
    )
    part_column: str = Field(
        default="partition_id",
        min_length=1,
        description="`offset_keys=columns`: the column of the part, an integer from 0 or its string.",
    )
    part_offset_column: str = Field(
        default="offset",
        min_length=1,
        description="`offset_keys=columns`: the column of the row's number in its part.",
    )
    payload_column: str | None = Field(
        default=None,
        min_length=1,
        description="`parts`: a column of type json, jsonb or text that stores the whole row as one JSON object.",
    )

    @model_validator(mode="after")
    def _deliverable(self) -> Self:
        if self.payload_column and self.parts is None:
            raise ValueError("payload_column is an option of parts")
        if self.by_epochs:
            return self
        if self.table_column:
            raise ValueError(
                f"table_column excludes {self._direct}: the driver publishes the tables of an epoch together"
            )
        if self.dead_letter_table:
            raise ValueError(f"dead_letter_table excludes {self._direct}: the driver must select the winning attempt")
        if self.write_mode != "append":
            raise ValueError(f"write_mode {self.write_mode} excludes {self._direct}: offsets identify rows, not keys")
        return self

    @property
    def _direct(self) -> str:
        """The options with which tasks publish, for messages."""
        return "parts"

    @property
    def by_epochs(self) -> bool:
        """Whether the driver publishes whole epochs. Otherwise the tasks publish, and offsets identify duplicates."""
        return self.parts is None

    @property
    def numbered(self) -> bool:
        """Whether columns of the table store part and number of each row."""
        return self.parts is not None and self.offset_keys == "columns"

    def reserved_columns(self) -> set[str]:
        """Return the column names that neither rows nor table may have; none by parts, whose rows are not staged."""
        return set() if self.parts is not None else super().reserved_columns()
