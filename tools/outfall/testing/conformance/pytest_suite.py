"""The checks as a pytest class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outfall.errors import require_extra
from outfall.testing.conformance.faults import CHECKS, Check, NotApplicableError, NotClaimedError, NotTriedError
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.suite import run_check

require_extra("testing", "pytest")

import pytest

TO_TRY = "add the missing method to the test, exclude the check in not_claimed with a reason, or set strict = False"


class SinkConformance(SinkHarness):
    """Subclass it as `TestMySink`, implement `make_sink` and `read`, and run pytest. Each check is a test.

    The suite tests the guarantee that the sink declares, or `claim`. Checks that do not apply or are excluded in
    `not_claimed` are skipped with the reason. A check that cannot run although the guarantee covers it fails, or is
    skipped with `strict = False`. Fixtures can set attributes of `self`, for example to start a server.
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

    # Simulated crashes leave resources open. `files_and_threads_stay_flat` checks for leaks.
    test = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")(
        test
    )
    test.__name__ = test.__qualname__ = f"test_{one.name}"
    test.__doc__ = one.finds
    return test


for _check in CHECKS.values():
    setattr(SinkConformance, f"test_{_check.name}", _test(_check))
