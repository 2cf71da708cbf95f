"""Replay of dead letters: reads them from any location and writes their rows into a sink, each exactly once.

```
sources        locations of dead letters: files, tables of databases, Kafka topics
dead_letters   one dead letter, its id, and filters
rows           converts the text of a dead letter to a row with given types (`ddl` parses Spark's DDL)
record         the selected dead letters and the rows of the last selection, as the state of a separate step
replaying      select · record · write, epoch by epoch
```

Does not use Spark. The command is in `outfall.cli.commands.replay`.
"""

from __future__ import annotations
