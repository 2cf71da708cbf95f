"""The base of all sinks that store files or objects."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsTarget,
    SupportsWriterContext,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.formats import FormatOptions, check_schema
from outfall.formats.partition_paths import PartitionOptions, PartitionPaths
from outfall.formats.types import check_case
from outfall.options import options_in_save_mode


class StorageOptions(FormatOptions, PartitionOptions):
    """The options of formats and partition directories. Sinks add their location and `on_existing`."""


class StorageSink(SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """A sink that only adds files and writes each row exactly once. Subclasses add the location and the publication."""

    options: StorageOptions
    context: WriterInitContext | None = None
    """The attempt that writes, in a task."""

    @property
    def buckets(self) -> PartitionPaths:
        """The partition directories of rows."""
        return PartitionPaths(self.options)

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed.options = options_in_save_mode(self.options, mode)
        return changed

    def output_modes(self) -> Collection[str]:
        return ("append",)

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def check_schema(self, schema: pa.Schema) -> None:
        check_case(schema)
        check_schema(self.options, self.buckets.stored_schema(schema))

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def bound_context(self) -> WriterInitContext:
        """Return the attempt that writes. Raises `ConfigurationError` if `bind` was not called."""
        if self.context is None:
            raise ConfigurationError(
                "the sink has no writer context", do="run the sink through outfall, which calls bind() first"
            )
        return self.context
