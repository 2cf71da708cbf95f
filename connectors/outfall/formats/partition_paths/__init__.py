"""Partition paths: below a sink's root, the directory that each row goes to."""

from outfall.formats.partition_paths.paths import PartitionArguments, PartitionOptions, PartitionPaths

__all__ = ["PartitionArguments", "PartitionOptions", "PartitionPaths"]
