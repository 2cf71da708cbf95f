"""What all sinks that store files or objects say of themselves."""

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
from outfall.options import options_in_save_mode


class StorageOptions(FormatOptions, PartitionOptions):
    """How rows become files, and in which directories; sinks add where these lie, with an `on_existing`."""


class StorageSink(SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """A sink that only ever adds files, each row in them once. Sinks add where they lie and how they are published."""

    options: StorageOptions
    context: WriterInitContext | None = None
    """Who writes, in a task."""

    @property
    def buckets(self) -> PartitionPaths | None:
        """Which directory a row goes to; `None` when all go to the target itself."""
        return PartitionPaths.of(self.options)

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed.options = options_in_save_mode(self.options, mode)
        return changed

    def output_modes(self) -> Collection[str]:
        return ("append",)

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def check_schema(self, schema: pa.Schema) -> None:
        buckets = self.buckets
        check_schema(self.options, schema if buckets is None else buckets.stored_schema(schema))

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def bound_context(self) -> WriterInitContext:
        """Return who writes.

        Raises:
            ConfigurationError: nobody has said so.
        """
        if self.context is None:
            raise ConfigurationError(
                "the sink was not told who writes", do="run it through outfall, which calls bind() first"
            )
        return self.context
