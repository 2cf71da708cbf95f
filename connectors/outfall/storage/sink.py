"""The base of all sinks that store files or objects."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    changed,
)
from outfall.formats import check_schema
from outfall.formats.partition_paths import PartitionPaths
from outfall.formats.types import check_case
from outfall.options import options_in_save_mode
from outfall.storage.layout import LayoutChange, LayoutPlace, check_layout
from outfall.storage.options import StorageOptions


class StorageSink(SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """A sink that only adds files and writes each row exactly once. Subclasses add the location and the publication."""

    options: StorageOptions
    _rows: pa.Schema | None = None
    """The columns of the rows, which were checked last in this process."""
    _settled: pa.Schema | None = None
    """The columns with which the layout of the target was compared last in this process."""

    @property
    def buckets(self) -> PartitionPaths:
        """The partition directories of rows."""
        return PartitionPaths(self.options)

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return changed(self, options=options_in_save_mode(self.options, mode))

    def output_modes(self) -> Collection[str]:
        return ("append",)

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def check_schema(self, schema: pa.Schema) -> None:
        check_case(schema)
        check_schema(self.options, self.buckets.stored_schema(schema))
        self._rows = schema

    def check_layout(self, place: LayoutPlace, context: TargetContext[Any], *, replaces: bool) -> LayoutChange | None:
        """Compare rows and options with the layout of the target. See `outfall.storage.layout.check_layout`.

        Called by `check_target`. What has been compared before in this run is not compared again.
        """
        if not context.starting and self._settled == self._rows:
            return None
        return check_layout(place, self.options, self._rows, context, replaces=replaces)

    def keep_layout(self, place: LayoutPlace, context: TargetContext[Any], change: LayoutChange | None) -> None:
        """Store a change of the layout. Called by `open_target`, with what `check_layout` returned."""
        if change is not None:
            change.write(place, context)
        self._settled = self._rows
