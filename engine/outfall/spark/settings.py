"""The settings of one step in the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from outfall.capabilities import SupportsPreWriteTopology
from outfall.capability_checks import ResolvedSink, check_sink, resolve
from outfall.errors import ConfigurationError
from outfall.options import in_own_case
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.validation import listed_parts
from outfall.recovery.log import check_step_id
from outfall.spark.columns import RowColumns, check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NullKey = Literal["error", "empty"]
AdoptCheckpoint = bool | Literal["rerun"]


@dataclass(frozen=True)
class StepSettings:
    """All settings of a step except the sink, the rows and the recovery location. Checked on construction."""

    step_id: str = "sink"
    key: str | None = None
    value: str | None = None
    null_key: NullKey = "error"
    order_by: Sequence[str] = ()
    workers: int | None = None
    adopt_checkpoint: AdoptCheckpoint = False
    commit: CommitPolicy = field(default_factory=CommitPolicy)

    def __post_init__(self) -> None:
        """Reject invalid values that are detectable without rows."""
        check_step_id(self.step_id)
        for name in ("key", "value"):
            column = getattr(self, name)
            if column is not None and not isinstance(column, str):
                raise ConfigurationError(f"{name} is a {type(column).__name__}", do="pass the name of a column")
        object.__setattr__(self, "null_key", in_own_case(self.null_key, ("error", "empty")))
        if self.null_key not in ("error", "empty"):
            raise ConfigurationError(f"null_key is {self.null_key!r}", do='pass "error" or "empty"')
        if self.adopt_checkpoint not in (True, False, "rerun"):
            raise ConfigurationError(f"adopt_checkpoint is {self.adopt_checkpoint!r}", do='pass True, False or "rerun"')
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise ConfigurationError(f"workers is {self.workers!r}", do="pass an integer from 1, or omit it")
        if isinstance(self.order_by, str) or not all(isinstance(column, str) for column in self.order_by):
            raise ConfigurationError(
                f"order_by is {self.order_by!r}",
                do="pass a list of column names; for another order, add a column with the values to sort by",
            )
        if not isinstance(self.commit, CommitPolicy):
            raise ConfigurationError(
                f"commit is a {type(self.commit).__name__}", do="pass an outfall.spark.CommitPolicy"
            )

    def check(self, sink: Any) -> None:
        """Check the settings against a sink. Called once per query or job.

        Raises `CapabilityError` if the sink's capabilities do not fit together, and `ConfigurationError` if the
        settings do not fit it.
        """
        resolved = check_sink(sink)
        if resolved.fixed:
            self.check_key(sink, len(listed_parts(self.step_id, resolved, ())))
        elif self.key is not None:
            raise ConfigurationError(
                f"key={self.key!r} routes rows to parts, and {type(sink).__name__} has none",
                do="omit key, or give the sink parts",
            )
        if resolved.keeps_writer_state() and self.workers is None:
            raise ConfigurationError(
                f"{type(sink).__name__} keeps state per worker, so their number must be set", do="pass workers="
            )
        if SupportsPreWriteTopology in resolved.capabilities and self.workers is not None and not resolved.fixed:
            raise ConfigurationError(
                f"{type(sink).__name__} partitions the rows itself, and workers={self.workers} would repartition them",
                do="omit workers: spark.sql.shuffle.partitions sets the number of tasks that write",
            )

    def for_sink(self, sink: Any) -> StepSettings:
        """Return the settings with the sink's default routing column, if the user has named none."""
        resolved = resolve(sink)
        if self.key is not None or not resolved.fixed or len(listed_parts(self.step_id, resolved, ())) == 1:
            return self
        return replace(self, key=resolved.routing_key())

    def check_key(self, sink: Any, parts: int) -> None:
        """Reject several parts without a key."""
        if self.key is None and parts > 1:
            raise ConfigurationError(
                f"{type(sink).__name__} has {parts} parts, but no key routes the rows to them",
                do="pass key=, the name of a column",
            )

    def check_rows(self, resolved: ResolvedSink, df: DataFrame) -> None:
        """Check the named columns, and let the sink check the columns that it gets.

        Raises `ConfigurationError` if a column is missing, or has a type that cannot be written.
        """
        if not resolved.supports_speculation() and df.sparkSession.conf.get("spark.speculation", "false") == "true":
            raise ConfigurationError(
                f"{resolved.name} cannot be written with spark.speculation=true",
                why="two attempts of one task would fence each other",
                do="start the session with spark.speculation=false",
            )
        columns = RowColumns(df.columns)
        found = {name: columns.find(name, given) for name, given in (("key", self.key), ("value", self.value)) if given}
        for column in self.order_by:
            columns.find("order_by", column)
        if self.value is not None:
            df = columns.renamed(df).select(found["value"].expression().alias(found["value"].name))
        elif SupportsPreWriteTopology not in resolved.capabilities:
            columns.check_unique()
        sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
        check_schema(resolved, df.schema, case_sensitive=sensitive)
