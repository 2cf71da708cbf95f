"""Buckets: below a sink's root, the directory that each row goes to."""

from __future__ import annotations

from outfall.formats.partition_paths.buckets import Buckets
from outfall.formats.partition_paths.options import BucketArguments, BucketOptions

__all__ = ["BucketArguments", "BucketOptions", "Buckets"]
