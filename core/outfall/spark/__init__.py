"""Outfall on Spark: two doors over one engine.

Sink objects, on Spark 3.5 and later: `write_stream`, `for_each_batch`, `write`, `drain`, `CommitPolicy`.
Options only, on Spark 4.1 and later: `df.writeStream.format("outfall")`, found without registration.
"""

from outfall.spark.version_check import check_pyspark

check_pyspark()

from outfall.protocol.commit_retry import CommitPolicy  # noqa: E402 - a missing or old pyspark gets its own error first
from outfall.spark.batch import write  # noqa: E402
from outfall.spark.drain import drain  # noqa: E402
from outfall.spark.registration import register  # noqa: E402
from outfall.spark.stream import for_each_batch, write_stream  # noqa: E402

__all__ = ["CommitPolicy", "drain", "for_each_batch", "register", "write", "write_stream"]
