"""Partition paths: the directory of each row below a sink's root."""

from outfall.formats.partition_paths.paths import PartitionArguments, PartitionOptions, PartitionPaths

__all__ = ["PartitionArguments", "PartitionOptions", "PartitionPaths"]
