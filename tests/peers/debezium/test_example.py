"""`examples/debezium_to_postgres.py` as a user runs it: it kills its job and its worker, and compares the tables."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.integration.conftest import spark_environment


@pytest.mark.long
def test_the_example_finds_no_difference() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "debezium_to_postgres.py")],
        env=os.environ | spark_environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "different 0" in ran.stdout
