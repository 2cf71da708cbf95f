"""The decimal that orders changes from Kafka: its layout, for those who make such sequences and those who compare them.

```
sequence = generation · PER_GENERATION + offset · PER_OFFSET + partition
```
"""

PER_OFFSET = 10**9
"""The distance between the sequences of two offsets: more than a partition's number, which is the remainder."""

PER_GENERATION = 10**28
"""The distance between the sequences of two generations: more than any offset's. Also the least sequence."""
