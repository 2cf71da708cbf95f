"""How one step is written through the objects door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outfall.capabilities import SupportsPreWriteTopology
from outfall.epoch.admission import listed_parts
from outfall.epoch.committing import CommitPolicy
from outfall.errors import ConfigurationError
from outfall.recovery.names import check_step_id
from outfall.sink_shape import check_sink, is_fixed, keeps_writer_state
from outfall.spark.arrow_schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NullKey = Literal["error", "empty"]


@dataclass(frozen=True)
class WriteSettings:
    """Everything about a write but the sink, the rows and the recovery location. Checked on construction."""

    step_id: str = "sink"
    key: str | None = None
    value: str | None = None
    null_key: NullKey = "error"
    order_by: Sequence[str] = ()
    workers: int | None = None
    adopt_checkpoint: bool = False
    commit: CommitPolicy = field(default_factory=CommitPolicy)

    def __post_init__(self) -> None:
        """Refuse what can be seen to be wrong without rows."""
        check_step_id(self.step_id)
        for name in ("key", "value"):
            column = getattr(self, name)
            if column is not None and not isinstance(column, str):
                raise ConfigurationError(f"{name} is a {type(column).__name__}", do="give the name of a column")
        if self.null_key not in ("error", "empty"):
            raise ConfigurationError(f"null_key is {self.null_key!r}", do='give "error" or "empty"')
        if self.workers is not None and self.workers < 1:
            raise ConfigurationError(f"workers is {self.workers}", do="give at least 1, or leave it out")

    def check(self, sink: Any, df: DataFrame | None = None) -> None:
        """Check the settings against a sink and, where given, the columns of its rows.

        Raises:
            CapabilityError: the sink's capabilities do not go together.
            ConfigurationError: key, value or order do not fit the sink or the rows.
        """
        check_sink(sink)
        if is_fixed(sink):
            self._check_key(sink)
        elif self.key is not None:
            raise ConfigurationError(
                f"key={self.key!r} routes rows to parts, and {type(sink).__name__} has none",
                do="leave key out, or give the sink parts",
            )
        if keeps_writer_state(sink) and self.workers is None:
            raise ConfigurationError(
                f"{type(sink).__name__} keeps state per worker, so their number must be fixed", do="pass workers="
            )
        if isinstance(sink, SupportsPreWriteTopology) and self.workers is not None and not is_fixed(sink):
            raise ConfigurationError(
                f"{type(sink).__name__} says itself which rows a task gets, and workers={self.workers} would deal them"
                " out anew",
                do="leave workers out: spark.sql.shuffle.partitions says how many tasks write",
            )
        if df is not None:
            self._check_columns(df)
            check_schema(sink, (df if self.value is None else df.select(self.value)).schema)

    def _check_key(self, sink: Any) -> None:
        parts = len(listed_parts(self.step_id, sink, ()))
        if self.key is None and parts > 1:
            raise ConfigurationError(
                f"{type(sink).__name__} has {parts} parts and no key says which row belongs to which",
                do="pass key=, the name of a column",
            )

    def _check_columns(self, df: DataFrame) -> None:
        wanted: Mapping[str, Sequence[str]] = {
            "key": [self.key] if self.key else [],
            "value": [self.value] if self.value else [],
            "order_by": self.order_by,
        }
        for name, columns in wanted.items():
            for column in columns:
                if column.split(".")[0].strip("`") not in df.columns:
                    raise ConfigurationError(
                        f"{name} names the column {column!r}, and the rows have {', '.join(df.columns)}",
                        do=f"give {name} the name of a column",
                    )
