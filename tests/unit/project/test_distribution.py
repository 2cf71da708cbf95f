"""How the tests of the default run are distributed to processes."""

from __future__ import annotations

from tests.conftest import has_spark
from tests.documents import ROOT


def test_every_file_with_spark_goes_to_the_process_that_has_the_jvm() -> None:
    files = list((ROOT / "tests" / "integration").rglob("test_*.py"))
    uses = {file for file in files if "spark: SparkSession" in file.read_text()}
    assert {file for file in files if has_spark(file)} >= uses != set()
