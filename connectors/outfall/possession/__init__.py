"""What a target knows of a step: its record, and how the step takes possession of the target with it.

```
possession          the state machine: check, open, advance, and the port that each kind of target implements
record              the contents of a record that is stored as JSON, and the errors of one that is missing
contents            what else a target contains, and whether `on_existing` allows it
```
"""
