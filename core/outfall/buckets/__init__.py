"""Buckets: below a sink's root, the directory that each row goes to."""

from __future__ import annotations

from outfall.buckets.buckets import Buckets
from outfall.buckets.options import BucketArguments, BucketOptions

__all__ = ["BucketArguments", "BucketOptions", "Buckets"]
