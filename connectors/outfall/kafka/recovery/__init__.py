"""Recovery data in Kafka, without the broker's transactions. See docs/recovery-kafka.md.

```
config     the location of the store, and its cached logs
log        the log: appends by writing and reading back; large states
progress   the topic of entries, read to its end, and the rule of valid records
keys       the keys of records
```
"""
