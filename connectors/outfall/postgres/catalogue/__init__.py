"""The server's catalog: columns of tables, type compatibility, and privileges."""
