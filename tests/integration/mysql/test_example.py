"""`examples/changes_to_mysql.py` as a user runs it: it kills its job once and compares the result itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.integration.conftest import spark_environment
from tests.integration.mysql.support import Target

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_the_example_finds_no_difference(target: Target) -> None:
    example = ROOT / "examples" / "changes_to_mysql.py"
    ran = subprocess.run(
        [sys.executable, str(example), target.dsn()],
        env=os.environ | spark_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "wrong or missing 0" in ran.stdout
