"""Dead letters come back: they are read wherever a sink has left them, and written into a sink, each once.

```
sources   where letters lie: files, a table of PostgreSQL, a topic of Kafka
letters   one letter: what it is known by, and which are meant
rows      its text becomes a row again, of given types (`ddl`: as Spark spells them)
record    which letters were chosen, and the rows of the last ones: the state of a step of its own
replay    choose · record · write, epoch by epoch
```

Free of Spark. `outfall.cli.commands.replay` is the command.
"""

from __future__ import annotations
