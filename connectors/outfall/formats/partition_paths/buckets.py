"""From a batch to the directories that its rows go to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.partition_paths.columns import Columns
from outfall.formats.partition_paths.distinct import Distinct, combined
from outfall.formats.partition_paths.options import BucketOptions
from outfall.formats.partition_paths.patterns import from_clock, from_column
from outfall.formats.partition_paths.values import levels
from outfall.formats.strings import literal


@dataclass(frozen=True)
class Buckets:
    """Splits batches by the directory that each row goes to, below a root that only the sink knows.

    A path is relative, has `/` between its levels, and stays below the root whatever the values are. It keeps nothing
    from one batch to the next, and pickles. Names and escapes are those of Spark's `partitionBy`.
    """

    options: BucketOptions

    @classmethod
    def of(cls, options: BucketOptions) -> Buckets | None:
        """Return the buckets that options ask for; `None` when all rows go to the root."""
        if not options.partition_by and options.bucket_pattern is None:
            return None
        return cls(options)

    def stored_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return what the files hold of rows: all columns but those of `partition_by`.

        Called before the first row moves, so that wrong options stop a query there.

        Raises:
            ConfigurationError: a column is missing, ambiguous or of a type that no directory's name gives back; the
                pattern does not fit its column; or nothing would be left for the files.
        """
        columns = Columns.of(self.options, schema)
        return pa.schema([schema.field(index) for index in columns.kept], metadata=schema.metadata)

    def split(self, batch: pa.RecordBatch, now: datetime) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Give each bucket of a batch with its rows, in the order in which the batch first holds them.

        Args:
            batch: any number of rows; never changed, and its memory is shared where rows of a bucket stand together.
            now: the time of writing, with a zone; only a pattern without `bucket_time` looks at it.

        Yields:
            The bucket's path and its rows in their order, without the columns of `partition_by`.

        Raises:
            ConfigurationError: as `stored_schema`.
            ValueRefusedError: a row has no directory, naming column and row. Nothing has been yielded by then.
        """
        if batch.num_rows == 0:
            return
        columns = Columns.of(self.options, batch.schema)
        # The directory is called as the option calls the column, whatever the column's case: Spark does so too.
        named = zip(columns.partition, self.options.partition_by, strict=True)
        parts = [levels(batch.column(index), name) for index, name in named]
        if columns.time is not None:
            parts.append(from_column(batch.column(columns.time), batch.schema.names[columns.time], columns.levels))
        elif columns.levels:
            parts.append(from_clock(now, columns.levels))
        rest = batch.select(list(columns.kept))
        rows = combined(parts)
        if rows is None:
            yield _paths(parts, pa.array([0]))[0], rest
            return
        order = None if _stand_together(rows) else pc.array_sort_indices(rows)  # a stable sort
        if order is not None:
            rest, rows = rest.take(order), rows.take(order)
        ends = pc.run_end_encode(rows).run_ends.to_pylist()
        starts = [0, *ends[:-1]]
        firsts = pa.array(starts)
        paths = _paths(parts, firsts if order is None else order.take(firsts))
        for path, start, end in zip(paths, starts, ends, strict=True):
            yield path, rest.slice(start, end - start)


def _stand_together(rows: pa.Array) -> bool:
    """Whether each bucket's rows already do; buckets are numbered as rows first hold them."""
    return bool(pc.all(pc.greater_equal(rows.slice(1), rows.slice(0, len(rows) - 1))).as_py())


def _paths(parts: list[Distinct], rows: pa.Array) -> list[str]:
    """The paths of some rows."""
    pieces = [part.at(rows) for part in parts]
    joined = pc.binary_join_element_wise(*pieces, literal("/"))
    return joined.to_pylist() if isinstance(joined, pa.Array) else [joined.as_py()]
