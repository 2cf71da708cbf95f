"""The conformance and fault suite: any sink against what it claims.

```
SinkHarness     what a sink's author gives: make_sink, read, …
Trials, Trial   targets, logs and a source; what must be found in the end
checks          one function per fault
SinkConformance the checks as tests of pytest;  run_conformance  the same without pytest
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
