"""Recovery data in tables of a PostgreSQL database.

```
config     the location, as arguments and as a URL
database   the tables, transactions and errors, for `outfall.sql.log`
```
"""
