"""PostgreSQL: rows in a table, each in it once, at the speed of COPY."""
