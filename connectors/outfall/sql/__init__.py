"""The base of the sinks of databases with transactions: each epoch is one transaction with the target's record.

```
options         the options that all databases share
database        what a database implements: connections and transactions; their retries
dialect         what a database implements: names, catalogue, types, loading, moving, errors
delivery        the base of a sink: checks and opens the table before an epoch; the delivery by epochs
target          compares the table with the recovery log, and lists the tables that a step needs
table           whether rows fit the user's table; creating it, and adding columns
ledger          the record of each step, in the same database and transactions
staging         the attempts of tasks, in one staging table per step
writer          one attempt: loads its rows into staging in one transaction
moving          moves rows from staging into the table, all or those that it accepts
publish         publishes an epoch from staging in one transaction
dead_letters    the tables of rejected rows
changes         which rows are changes, for the write mode `changes`
tombstones      the sequences of keys that changes have deleted, in one table per target
```

Nothing here assumes that DDL can be rolled back: `SqlDatabase.make` creates tables before the first row is written.
Statements have parameters in the style `pyformat`, and every other % is doubled.

The recovery log in a database stands beside it:

```
log             a recovery log in two tables: entries, large states and heartbeats
log_config      a location of logs, for `recovery=`
log_database    what a database provides for it; its transactions with retries
log_location    the location of a log as a URL, without secrets
```
"""
