"""What all tests share."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling, Scheduling  # type: ignore[import-untyped]

from tests.budget import record_skipped, timed_call
from tests.programs import line_of_absent_programs, was_absent

# The same examples in every run, and no clock: a machine that is busy proves nothing. What searches with fresh seeds
# says so itself, and is long.
settings.register_profile(
    "outfall", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("outfall")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Record a default test whose own call is long."""
    if item.get_closest_marker("thorough") or item.get_closest_marker("long"):
        return (yield)
    with timed_call(item.nodeid):
        return (yield)


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """Each file runs in one process, and all files with Spark in the same one, because each JVM costs many seconds."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what tests have in common that run in the same process."""
        file = nodeid.partition("::")[0]
        return "spark" if has_spark(self.config.rootpath / file) else file


@cache
def has_spark(file: Path) -> bool:
    """Return whether a file of tests uses a session of Spark."""
    return re.search(r"^from pyspark\.sql import .*\bSparkSession$", file.read_text(), re.MULTILINE) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Distribute tests for `--dist loadfile`."""
    return OneSpark(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Record the tests that were skipped because something was absent, and name the programs in the last line."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):  # a worker of pytest-xdist has a silent one
        return
    reports = [report for report in terminal.stats.get("skipped", ()) if isinstance(report.longrepr, tuple)]
    skipped = [(report.nodeid, report.longrepr[2]) for report in reports if was_absent(report.longrepr[2])]
    record_skipped(skipped)
    if line := line_of_absent_programs(reason for _, reason in skipped):
        terminal.write_line(line, yellow=True)
