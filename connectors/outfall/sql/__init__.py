"""What the databases with transactions share.

```
log             a recovery log in two tables: entries, large states and heartbeats
log_database    what a database provides for it; its transactions with retries
log_location    the location of a log as a URL, without secrets
```
"""
