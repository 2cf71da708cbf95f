"""The common base of the table sinks (Iceberg, Delta): tasks write Parquet, the driver commits an epoch.

```
sink, options   the base class of the sinks, and their common options
table           the port of a table format, for tasks (FileLayout) and on the driver (LoadedTable)
writer          a task's rows: cast, split by partition, and written as Parquet files
columns         the fit of rows and tables, by the types and rules of a format
arrow_types     the types of rows that a column accepts without changing a value
area            the location and the names of data files
write_mode      how the files of an epoch become rows of the table
data_file       the result of a task, and the single committable of an epoch
target          the table in the recovery data: check, open, clean-up
commit          the committer: one compare-and-swap with files and record
record          the table's own record of a step
```

Where a column names the table of each row:

```
allowed         what options say of tables that rows name, also for the sinks of databases
routing         a task's rows by table, each table checked and opened at its first row
meeting         first contact with a table: at its first row, at a start of the driver, in clean-up
many            one committable and one committer per table
```

Formats with `upsert` and `delete` also use:

```
keyed_sink      the base class of their sinks; key_options: its options
keyed           the port of a table whose rows are found by key
staging         the rows that tasks stage for a merge
changes         the changes of an epoch, at most one per key
merge           the driver rewrites the data files that have these keys
stored_rows     the rows of one data file, of any writer; stored_columns: its columns as the table has them
```

Whose objects a module creates:

```
keyed_sink → merge
merge → staging, writer
options → allowed
routing → allowed
sink → commit, many, meeting, routing, target, write_mode, writer
target → data_file
```

`docs/table-protocol.md` argues why it is correct.
"""
