"""Delivery by parts: rows are routed by key, and a task writes its rows and their parts' record in one transaction.

```
delivery  the base of a sink by parts, which closes an epoch once its tasks have published
target    compares the rows of parts in the ledger with the recovery log
writer    one task: sends its rows straight into the table, and publishes them
rows      the columns that a table has for the part and the number of a row
ledger    one row for each part: its epoch, and count and hash of the rows
options   the options of sinks that can deliver by parts
```
"""
