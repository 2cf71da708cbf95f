"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.programs import told

# The same examples in every run, and no clock: a machine that is busy proves nothing. What searches with fresh seeds
# says so itself, and is long.
settings.register_profile(
    "outfall", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("outfall")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name, in the last line, the programs that tests were skipped without, and the command that installs them."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:  # a worker of pytest-xdist
        return
    skipped = (report.longrepr for report in terminal.stats.get("skipped", ()))
    if line := told(reason[2] for reason in skipped if isinstance(reason, tuple)):
        terminal.write_line(line, yellow=True)
