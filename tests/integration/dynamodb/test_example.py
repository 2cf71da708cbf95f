"""`examples/upserts_to_dynamodb.py` as a user runs it: it compares the result itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.integration.conftest import spark_environment

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_the_example_finds_no_difference() -> None:
    command = [sys.executable, str(ROOT / "examples" / "upserts_to_dynamodb.py")]
    environment = os.environ | spark_environment()
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "wrong or missing 0" in ran.stdout
