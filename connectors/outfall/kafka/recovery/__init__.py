"""Recovery data in Kafka, right without the broker's transactions. See docs/recovery-kafka.md.

```
config     where the store is, and its logs between two uses
log        the log: appends by writing and reading back; large states
progress   the topic of entries, read to its end, and which records count
keys       the keys of records
```
"""
