"""Spark finds `format("outfall")` here: it looks for `DefaultSource` in modules named `pyspark_…`.

Importing this never raises and loads no connector, since Spark imports it in every session.
"""

try:
    from outfall.spark.data_source import OutfallDataSource as DefaultSource
except ImportError:  # PySpark before 4.1 has no Arrow stream writers
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
