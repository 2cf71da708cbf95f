"""The common base of the table sinks (Iceberg, Delta): tasks write Parquet, the driver commits an epoch.

```
sink, options   the base class of the sinks, and their common options
table           the port of a table format, for tasks (FileLayout) and on the driver (LoadedTable)
writer          a task's rows: cast, split by partition, and written as Parquet files
by_spark        the data files of Spark's own writer
columns         the fit of rows and tables, by the types and rules of a format
arrow_types     the types of rows that a column accepts without changing a value
area            the location and the names of data files
data_file       the result of a task, and the single committable of an epoch
target          the table in the recovery data: check, open, clean-up
commit          the committer: one compare-and-swap with files and record
record          the table's own record of a step
```

`docs/table-protocol.md` argues why it is correct.
"""
