"""The Python API and `format("outfall")` on Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outfall.spark.version_check import pyspark_version
from tests.integration.conftest import spark_environment
from tests.integration.support import connect_apis

pytestmark = [
    pytest.mark.spark,
    pytest.mark.thorough,
    pytest.mark.skipif(pyspark_version() < (4, 0), reason="PySpark 3.5 brings no Connect server"),
]


def test_each_row_is_found_once_on_connect(tmp_path: Path) -> None:
    names = ["growing", "whole", "by spark", *(["options"] if pyspark_version() >= (4, 1) else [])]
    with (tmp_path / "output").open("wb") as file:
        status = subprocess.run(
            [sys.executable, str(connect_apis.__file__), str(tmp_path), *names],
            check=False,
            env={**os.environ, **spark_environment()},
            stdout=file,
            stderr=file,
            timeout=1800,  # of which it may wait long for the port, that other tests have
        )
    assert status.returncode == 0, (tmp_path / "output").read_text(errors="replace")[-5000:]
    report = json.loads((tmp_path / "report.json").read_text())
    tags = report.pop("tags")
    assert "_Tag_outfall: step tagged; epoch 0 → __main__.TagSink" in tags["of the task"]
    assert tags["left"] == []
    assert report.pop("listened") == [[0, 0, 10], [1, 1, 10], [1, 1, 0]]
    assert report.pop("deserialized") == 1
    assert report.pop("changed") == ["7", "c", "10000000000000000003000000001"]
    kept = report.pop("kept")
    if "options" in names:
        assert "url of HttpSink: missing" in kept["texts"].pop()
        output = (tmp_path / "output").read_text(errors="replace")
        assert output.count("the secret of bearer_token is visible: Spark Connect") == 1
        assert "s3cr3tpw" not in output
    assert kept["ids"] == list(range(20))
    assert all("What to do: " in text and "\n" not in text for text in kept["texts"])
    said = ("belongs to Spark query", "is not the checkpoint of a query", "is the checkpoint of another query")
    assert [part in text for part, text in zip(said, kept["texts"], strict=True)] == [True, True, True]
    assert {name: item["ids"] for name, item in report.items()} == {
        **{name: list(range(20)) for name in names},
        "batch": list(range(10)),
    }
    assert {report[name]["skipped"] for name in names} == {10}
