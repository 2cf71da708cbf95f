"""`examples/upserts_to_redis.py` as a user runs it: it kills its job once and compares the result itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.integration.conftest import spark_environment
from tests.integration.support.redis_server import RedisServer

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_the_example_finds_no_difference(server: RedisServer) -> None:
    example = ROOT / "examples" / "upserts_to_redis.py"
    ran = subprocess.run(
        [sys.executable, str(example), server.url],
        env=os.environ | spark_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "wrong or missing 0" in ran.stdout
