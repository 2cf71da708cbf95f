"""Test tools for sinks: a local engine, crash points, fault injection, and the conformance suite.

The import arms the crash points of `outfall.testing.crash_points`. All other names are imported on first use, so that
Spark workers with crash points start fast. `SinkConformance` and the random schedules require the extra `testing`
(pytest, hypothesis).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import outfall.testing.crash_points  # noqa: F401 - importing arms them

if TYPE_CHECKING:
    from outfall.testing.conformance import ConformanceReport, SinkHarness, run_conformance
    from outfall.testing.conformance.pytest_suite import SinkConformance
    from outfall.testing.crash_points import CrashError, crash_at, crash_environment
    from outfall.testing.disks import loop_disk, memory_disk
    from outfall.testing.failing_calls import failing_call
    from outfall.testing.local_engine import FakeClock, LocalDriver
    from outfall.testing.memory_log import ByReference, MemoryRecoveryConfig
    from outfall.testing.tcp_proxy import NetworkFault, TcpProxy

__all__ = [
    "ByReference",
    "ConformanceReport",
    "CrashError",
    "FakeClock",
    "LocalDriver",
    "MemoryRecoveryConfig",
    "NetworkFault",
    "SinkConformance",
    "SinkHarness",
    "TcpProxy",
    "crash_at",
    "crash_environment",
    "failing_call",
    "loop_disk",
    "memory_disk",
    "run_conformance",
]

_MODULES = {
    "ByReference": "memory_log",
    "ConformanceReport": "conformance",
    "CrashError": "crash_points",
    "FakeClock": "local_engine",
    "LocalDriver": "local_engine",
    "MemoryRecoveryConfig": "memory_log",
    "NetworkFault": "tcp_proxy",
    "SinkConformance": "conformance.pytest_suite",
    "SinkHarness": "conformance",
    "TcpProxy": "tcp_proxy",
    "crash_at": "crash_points",
    "crash_environment": "crash_points",
    "failing_call": "failing_calls",
    "loop_disk": "disks",
    "memory_disk": "disks",
    "run_conformance": "conformance",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
