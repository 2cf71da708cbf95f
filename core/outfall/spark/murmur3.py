"""Spark's hash of an int: MurmurHash3 x86_32 (Austin Appleby, public domain) with seed 42, as `hash(int)` in SQL."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_SEED = 42


def hash_int(value: int) -> int:
    """Return what Spark's `hash` gives for an INT column: a signed 32-bit integer."""
    k = (value & _MASK) * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) & _MASK
    h = _SEED ^ (k * 0x1B873593 & _MASK)
    h = (h << 13 | h >> 19) & _MASK
    h = (h * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def partition_salts(partitions: int) -> list[int]:
    """Find, for each partition, the least int that `repartition(partitions, column)` sends there."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < partitions:
        found.setdefault(hash_int(value) % partitions, value)
        value += 1
    return [found[index] for index in range(partitions)]
