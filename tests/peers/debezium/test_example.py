"""`examples/debezium_to_postgres.py` as a user runs it: it kills its job and its worker, and compares the tables."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.integration.conftest import spark_environment

EXAMPLE = ROOT / "examples" / "debezium_to_postgres.py"


def test_the_recipe_has_the_connector_of_the_example() -> None:
    (given,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs" / "recipes" / "cdc.md").read_text(), re.M | re.DOTALL)
    assert runpy.run_path(str(EXAMPLE))["CONNECTOR"] == json.loads(given)


@pytest.mark.long
def test_the_example_finds_no_difference() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=os.environ | spark_environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "different 0" in ran.stdout
