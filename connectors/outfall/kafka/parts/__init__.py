"""Exactly once for `read_committed` readers: each part commits its rows and its place in one transaction.

```
delivery      the sink with parts, as the engine knows it
target        the driver's side: what is compared, taken over and sealed
part_writer   the task's side: begin, send, commit, or find it there
ledger        the topic of records: who writes, and what each part committed last
cluster       what both ask of the brokers
```
"""
