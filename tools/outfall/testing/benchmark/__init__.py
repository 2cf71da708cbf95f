"""How fast a sink is, against one that does nothing, on the same rows in the same Spark session.

`python -m outfall.testing.benchmark package.module:make_sink` prints it and needs the extras `benchmark` and `spark`.
The names below are for a benchmark of your own; importing them needs neither.
"""

from outfall.testing.benchmark.runs import EmptySink, Run, Spread, in_turn, ratios, spread

__all__ = ["EmptySink", "Run", "Spread", "in_turn", "ratios", "spread"]
