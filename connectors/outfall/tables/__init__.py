"""What the sinks of table formats (Iceberg, Delta) have in common: tasks write Parquet, the driver commits an epoch.

```
sink, options   what a format's sink derives from, and the options that all have
table           the port: what is asked of a format, for tasks (FileLayout) and on the driver (LoadedTable)
writer          a task's rows, cast, split by partition, and written as Parquet files
arrow_types     which types of rows a column takes without changing a value
area            where data files lie, and whose they are
data_file       what tasks hand over, and the one committable of an epoch
target          the table as the recovery data knows it: checked, opened, cleaned up
commit          the committer: one compare-and-swap with files and marker
marker          what the table itself says of a step
```

`docs/table-protocol.md` argues why it is right.
"""
