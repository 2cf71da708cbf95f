"""Sinks whose writes are upserts and deletes by key that carry a version, which the server compares.

A late or repeated write of an older attempt then changes nothing: the final state is that of one run.

```
options         the options of such a sink
draws           versions: drawn at each BEGIN from a counter record in the target, by compare-and-swap; the rule by
                which two of them decide about a write
rows            rows to writes: the key, what is written, and the rank among the rows of one key in an epoch
outcomes        the outcome of each row of a request
sink            the sink and its partition: the target's record, the version of a task, the answers of the server
```

A shim implements a `RecordStore` and derives from `VersionedSink` and `VersionedPartition`.
"""

from __future__ import annotations

from outfall.versioned.draws import Answer, RecordStore, Version
from outfall.versioned.options import Deletes, TombstoneOptions, VersionedOptions, VersionedSettings
from outfall.versioned.outcomes import Outcomes
from outfall.versioned.rows import KeyedBatch, KeyedRow
from outfall.versioned.sink import VersionedPartition, VersionedSink

__all__ = [
    "Answer",
    "Deletes",
    "KeyedBatch",
    "KeyedRow",
    "Outcomes",
    "RecordStore",
    "TombstoneOptions",
    "Version",
    "VersionedOptions",
    "VersionedPartition",
    "VersionedSettings",
    "VersionedSink",
]
