"""Debezium's change events as rows for `write_mode="changes"`: `changes`; and their tables: `captured_tables`.

```
changes      the function: the records of a topic as changes of a table, and what cannot be applied
events       which records are changes, of which row; JSON with and without schema, structs, the flat form
tables       one table, or several with their columns
captured     tables with columns and keys, as the schemas of events have them
values       a value of an event as a column of the table
order        the place of a change in the order of delivery, as one decimal
```
"""

from outfall.spark.debezium.captured import CapturedTable, captured_tables
from outfall.spark.debezium.changes import changes
from outfall.spark.debezium.order import DeliveryOrder

__all__ = ["CapturedTable", "DeliveryOrder", "captured_tables", "changes"]
