"""The base of the sinks of databases with transactions: each epoch is one transaction with the target's record.

```
delivery        the base of a sink: checks and opens the table before an epoch; makes all that follows, for each step
  tables        the tables of a step: its target and its own; and what differs if rows name the targets
  target        compares the table with the recovery log, and lists the tables that a step needs
    table       whether rows fit the user's table; creating it, and adding columns
    ledger      the record of each step, in the same database and transactions
    staging     the attempts of tasks, in one staging table per step
    tombstones  the sequences of keys that changes have deleted, in one table per target
    dead_letters  the tables of rejected rows
  writer        one attempt: loads its rows into staging in one transaction
  publish       publishes an epoch from staging in one transaction
    table_move  moves the rows for one table; those that it rejects become dead letters
    keyed       moves the rows of an epoch from staging into the table, all or some
    moving      finds by bisection those that the table accepts
many/           into many tables: rows name theirs
parts/          by parts: tasks publish their rows independently, and the ledger has a row for each part
statements      every statement of the tables above and of moves, as text, from options and words
changes         which rows are changes, for the write mode `changes`
options         the options that all databases share
```

A database implements:

```
database        the port, for rows and log: where it is, connections, what errors mean
session         a connection of it: statements that are sent together, and what the catalogue says, until it changes
dialect         names, catalogue, types, loading, the addresses of staged rows, errors
names           names of tables: as spelled, as the server has them, in the ledger, and of the sink's own tables
words           what differs as text
```

Nothing here assumes that DDL can be rolled back: `SqlDatabase.make` creates tables before the first row is written.
Statements have parameters in the style `pyformat`, and every other % is doubled.

The recovery log in a database stands beside it:

```
log             a recovery log in two tables: entries, large states and heartbeats
log_config      a location of logs, for `recovery=`
log_database    what a database adds to its port for it; its transactions with retries
log_location    URLs of servers, without secrets
```
"""
