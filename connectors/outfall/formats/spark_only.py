"""Formats that Outfall does not encode: Spark's own writer does, for sinks that let it write the rows."""

from __future__ import annotations

from typing import ClassVar, NoReturn

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.formats.base import Encoder
from outfall.formats.options import Compression


class SparkOnlyFormat(Encoder):
    """A format of Spark's writer. It encodes nothing here."""

    spark_only = True
    compresses = True
    read_by: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        """Accept every schema: Spark checks the columns before it writes."""

    def encode(self, batch: pa.RecordBatch) -> NoReturn:
        """Raise `ConfigurationError`."""
        raise ConfigurationError(f"{type(self).__name__} is encoded by Spark only", do='pass writer="spark"')


class OrcFormat(SparkOnlyFormat):
    """ORC files."""

    codecs: ClassVar[tuple[Compression, ...]] = ("zstd", "none", "snappy")


class AvroFormat(SparkOnlyFormat):
    """Avro files. Spark needs its package `spark-avro`."""

    codecs: ClassVar[tuple[Compression, ...]] = ("snappy", "none", "zstd")
