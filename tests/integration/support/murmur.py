"""Spark's hash of an int column, and how `repartition` can be told by it which partition a row belongs to."""

from __future__ import annotations


def hash_int(value: int, seed: int = 42) -> int:
    """Return what Spark's `hash` returns for an INT column: Murmur3_x86_32.hashInt, signed."""
    mask = 0xFFFFFFFF
    k = (value & mask) * 0xCC9E2D51 & mask
    k = (k << 15 | k >> 17) & mask
    h = seed ^ (k * 0x1B873593 & mask)
    h = (h << 13 | h >> 19) & mask
    h = (h * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def salts(count: int) -> list[int]:
    """Return, for each of `count` partitions, the smallest INT >= 0 that `repartition(count, column)` sends there."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < count:
        found.setdefault(hash_int(value) % count, value)
        value += 1
    return [found[partition] for partition in range(count)]
