"""Programs that pip cannot install: a test that needs one is skipped without it, and the run says how to get it.

`OUTFALL_TEST_REQUIRE_ALL=1` turns these skips into failures, as `.ci/run` does: there, nothing passes because
something was absent.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterable
from typing import NoReturn

import pytest

PACKAGES = {
    "chromium": "chromium",
    "pgbouncer": "pgbouncer",
    "postgres": "postgresql",  # with ICU, which PyPI's server lacks
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "gzip": "gzip",
    "ip": "iproute2",
    "mariadbd": "mariadb-server",
    "mvn": "maven",
    "redis-server": "redis-server",
    "strace": "strace",
    "zstd": "zstd",
}
"""By program: the package of Debian and Ubuntu that has it."""

_WITHOUT = "needs the program "
_PATH = os.pathsep.join(
    (os.environ.get("PATH", os.defpath), "/usr/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))
)


def program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    found = shutil.which(name, path=_PATH)
    if found is None:
        absent(f"{_WITHOUT}{name}")
    return found


def absent(reason: str) -> NoReturn:
    """Skip the test, because this machine lacks something; fail it where nothing may be missing."""
    if os.environ.get("OUTFALL_TEST_REQUIRE_ALL"):
        pytest.fail(f"{reason}, and OUTFALL_TEST_REQUIRE_ALL is set", pytrace=False)
    pytest.skip(reason)


def told(reasons: Iterable[str]) -> str | None:
    """Return one line about the programs that tests were skipped without, from the reasons of all skipped tests."""
    without = [reason.partition(_WITHOUT)[2] for reason in reasons if _WITHOUT in reason]
    if not without:
        return None
    packages = sorted({PACKAGES[name] for name in without})
    tests = "1 test" if len(without) == 1 else f"{len(without)} tests"
    return (
        f"{tests} skipped without {', '.join(sorted(set(without)))}. To run them: sudo apt-get install"
        f" {' '.join(packages)}"
    )
