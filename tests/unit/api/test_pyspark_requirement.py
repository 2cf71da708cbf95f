"""A PySpark that is missing or too old is a clear error, and Spark's own look-up never fails."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest


def run_without_pyspark(code: str) -> subprocess.CompletedProcess[str]:
    hidden = f"import sys; sys.modules['pyspark'] = None; {code}"
    return subprocess.run([sys.executable, "-c", hidden], check=False, capture_output=True, text=True)


def test_a_missing_pyspark_names_what_to_install() -> None:
    run = run_without_pyspark("import outfall.spark")
    assert run.returncode != 0
    assert "pip install 'outfall[spark]'" in run.stderr.splitlines()[-1]


def test_importing_the_module_that_spark_looks_into_never_fails_and_loads_no_connector() -> None:
    code = "import pyspark_outfall; print([m for m in sys.modules if m.startswith('outfall.file')])"
    run = run_without_pyspark(code)
    assert (run.returncode, run.stdout) == (0, "[]\n")


@pytest.mark.thorough
def test_everything_but_the_spark_package_works_without_pyspark() -> None:
    run = run_without_pyspark("import outfall.file, outfall.testing, outfall.recovery, outfall.protocol.coordinator")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("found", "oldest", "refused"),
    [("3.4.4", (3, 5), True), ("3.5.9", (3, 5), False), ("4.0.1", (4, 1), True), ("4.10.0.dev1", (4, 1), False)],
)
def test_versions_are_compared_as_numbers(
    monkeypatch: pytest.MonkeyPatch, found: str, oldest: tuple[int, int], refused: bool
) -> None:
    reason = "the other tests need no pyspark at all"
    requirement = pytest.importorskip("outfall.spark.version_check", reason=reason, exc_type=ImportError)
    fake = types.ModuleType("pyspark")
    fake.__version__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", fake)
    if refused:
        with pytest.raises(ImportError, match="too old"):
            requirement.check_pyspark(oldest)
    else:
        requirement.check_pyspark(oldest)
