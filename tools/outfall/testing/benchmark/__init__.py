"""Measures a sink and an empty sink with the same rows in the same Spark session.

`python -m outfall.testing.benchmark package.module:make_sink` prints the comparison. It requires the extras `benchmark`
and `spark`. The public names are for custom benchmarks; their import requires neither extra.
"""

from outfall.testing.benchmark.runs import EmptySink, Run, Spread, in_turn, ratios, spread

__all__ = ["EmptySink", "Run", "Spread", "in_turn", "ratios", "spread"]
