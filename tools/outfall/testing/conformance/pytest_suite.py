"""The checks as tests of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outfall.errors import missing_extra
from outfall.testing.conformance.faults import CHECKS, Check, NotApplicableError, NotClaimedError, NotTriedError
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.suite import run_check

try:
    import pytest
except ImportError as error:
    raise missing_extra("pytest", "testing") from error


TO_TRY = "give the test what is missing, name the check in not_claimed with the reason, or set strict = False"


class SinkConformance(SinkHarness):
    """Subclass it as `TestMySink`, implement `make_sink` and `read`, and run pytest: each check is a test.

    The guarantee that is tested is the one that the sink declares, or `claim`. A check that does not apply, or that the
    sink gives up in `not_claimed`, is skipped with the reason. One that cannot be tried although the claim covers it
    fails, or is skipped where `strict` says so. Fixtures may set attributes of `self`, as to start a server.
    """


def _test(one: Check) -> Any:
    def test(self: SinkConformance, tmp_path: Path) -> None:
        try:
            run_check(self, one.name, tmp_path)
        except NotTriedError as reason:
            if reason.strict:
                pytest.fail(f"not tried: {reason}\nWhat to do: {TO_TRY}.", pytrace=False)
            pytest.skip(f"not tried: {reason}")
        except NotClaimedError as reason:
            pytest.skip(f"not claimed: {reason}")
        except NotApplicableError as reason:
            pytest.skip(f"not applicable: {reason}")

    # A crash leaves things open that only the death of a process closes; `files_and_threads_stay_flat` looks for leaks.
    test = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")(
        test
    )
    test.__name__ = test.__qualname__ = f"test_{one.name}"
    test.__doc__ = one.finds
    return test


for _check in CHECKS.values():
    setattr(SinkConformance, f"test_{_check.name}", _test(_check))
