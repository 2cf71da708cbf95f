"""For authors and users of sinks: a local engine, crash points, and what a test needs to read a step's log."""

from outfall.testing.crash_points import CrashError, crash_at
from outfall.testing.fake_clock import FakeClock
from outfall.testing.local_engine import LocalDriver

__all__ = ["CrashError", "FakeClock", "LocalDriver", "crash_at"]
