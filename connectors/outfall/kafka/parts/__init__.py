"""Exactly once for `read_committed` readers: each part commits its rows and its position in one transaction.

```
delivery      the sink with parts: the interface to the engine
target        the driver's side: checks, take-over and seal
part_writer   the task's side: begin, send and commit, or find the epoch committed
ledger        the topic of records: the writer of a step, and the last commit of each part
cluster       the requests of both to the brokers
```
"""
