"""The conformance suite: tests the declared guarantee of any sink with injected faults.

```
harness       `SinkHarness`, implemented by the sink's author: make_sink, read, …
trial         a target, a log and a source; comparison of the visible rows with the guarantee; rows: the rows of trials
trials        trials and conditions for one check
checks        one function per fault; faults: their outcomes
schedules     sequences of events of a query, and their execution; search: for one that violates a guarantee
driver        drivers with isolated tasks, as on Spark; discarding: a sink to stand beside that of the test
spying        announces every call of the engine as a step; stepping: suspends attempts and drivers at a step
pytest_suite  `SinkConformance`, the checks as pytest tests
suite         `run_conformance`, the checks without pytest
```
"""

from outfall.testing.conformance.faults import (
    CHECKS,
    Check,
    ConformanceError,
    NotApplicableError,
    NotClaimedError,
    NotTriedError,
)
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.suite import CheckResult, ConformanceReport, run_check, run_conformance

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "ConformanceError",
    "ConformanceReport",
    "NotApplicableError",
    "NotClaimedError",
    "NotTriedError",
    "SinkHarness",
    "run_check",
    "run_conformance",
]
