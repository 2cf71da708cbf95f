"""Programs that pip cannot install: a test that needs one is skipped without it, and the run says how to get it.

`OUTFALL_TEST_REQUIRE_ALL=1` turns these skips into failures. `OUTFALL_TEST_WITHOUT_PROGRAMS=1` treats all of the
programs as absent, as on a fresh machine. `python -m tests.programs` prints the packages of those that are absent.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterable
from typing import NoReturn

PACKAGES = {
    "chromium": "chromium",
    "git": "git",
    "ip": "iproute2",
    "javac": "openjdk-17-jdk-headless",
    "logrotate": "logrotate",
    "mariadb": "mariadb-client",
    "mariadb-install-db": "mariadb-server",
    "mariadbd": "mariadb-server",
    "mkfs.ext4": "e2fsprogs",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "pgbouncer": "pgbouncer",
    "postgres": "postgresql",  # with ICU, which PyPI's server lacks
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",  # without it, Valkey from PyPI
    "strace": "strace",
    "zstd": "zstd",
}
"""By program: the package of Debian and Ubuntu that has it."""

GIVEN = frozenset({"apt-get", "bash", "dpkg-deb", "gzip", "java", "mount", "setpriv", "sleep", "true", "umount"})
"""Programs that every Debian has, and Java, which the README requires."""

_REQUIRE_ALL = "OUTFALL_TEST_REQUIRE_ALL"
_WITHOUT_PROGRAMS = "OUTFALL_TEST_WITHOUT_PROGRAMS"
_ABSENT = "absent here: "
_PROGRAM = f"{_ABSENT}the program "


def program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed.

    Raises:
        LookupError: `PACKAGES` does not have the program.
    """
    return installed(name) or absent(f"the program {name}")


def installed(name: str) -> str | None:
    """Return the path of a program, for tests that can do without it.

    Raises:
        LookupError: `PACKAGES` does not have the program.
    """
    if name not in PACKAGES:
        raise LookupError(f"no package is known for the program {name}. What to do: add it to PACKAGES in {__file__}")
    return None if os.environ.get(_WITHOUT_PROGRAMS) else _found(name)


def _found(name: str) -> str | None:
    own = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", *own]))


def absent(what: str) -> NoReturn:
    """Skip the test, because this machine lacks something; fail it where nothing may be absent."""
    import pytest  # not above: `python -m tests.programs` runs before it is installed

    if os.environ.get(_REQUIRE_ALL):
        pytest.fail(f"{_ABSENT}{what}, and {_REQUIRE_ALL} is set", pytrace=False)
    pytest.skip(f"{_ABSENT}{what}", allow_module_level=True)


def was_absent(reason: str) -> bool:
    """Return whether a test was skipped by `absent`, from its reason."""
    return _ABSENT in reason


def line_of_absent_programs(reasons: Iterable[str]) -> str | None:
    """Return one line about the programs that tests were skipped without, from the reasons of all skipped tests."""
    without = [reason.partition(_PROGRAM)[2] for reason in reasons if _PROGRAM in reason]
    if not without:
        return None
    packages = sorted({PACKAGES[name] for name in without})
    tests = "1 test" if len(without) == 1 else f"{len(without)} tests"
    return (
        f"{tests} skipped without {', '.join(sorted(set(without)))}. To run them: sudo apt-get install"
        f" {' '.join(packages)}"
    )


if __name__ == "__main__":
    print(*sorted({package for name, package in PACKAGES.items() if _found(name) is None}))
