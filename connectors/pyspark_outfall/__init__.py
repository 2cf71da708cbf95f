"""Registers `format("outfall")`: Spark looks for `DefaultSource` in modules whose name begins with `pyspark_`.

Spark imports this module in every session. The import never raises and loads no connector.
"""

try:
    from outfall.spark.data_source import OutfallDataSource as DefaultSource
except ImportError:  # PySpark before 4.1 has no Arrow stream writers
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
