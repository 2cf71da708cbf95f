"""The blocks of docs/s3.md, against a real server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.documents import ROOT, blocks
from tests.integration.project.test_docs import ROWS, SCHEMA, finish_queries, runs_here
from tests.integration.s3.support import Target, credentials_file
from tests.integration.support.s3 import S3

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def test_blocks_run(spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    spark.createDataFrame([tuple(row.values()) for row in ROWS], SCHEMA).write.mode("append").json(str(source))
    names: dict[str, Any] = {"flights": spark.readStream.schema(SCHEMA).json(str(source))}
    target = Target(s3, prefix="flights")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    found = [block for block in blocks(ROOT / "docs" / "s3.md") if runs_here(block)]
    with credentials_file(s3):
        for block in found:
            code = block.code.replace("s3a://lake/by-options", f"s3://{target.bucket}/by-options")
            code = code.replace("s3://lake", f"s3://{target.bucket}")
            code = code.replace('"lake", ', f'"{target.bucket}", endpoint_url="{s3.endpoint}", prefix=')
            code = code.replace('.option("path"', f'.option("endpointUrl", "{s3.endpoint}").option("path"')
            replace(block, code=code).run(names, tmp_path)
            finish_queries(spark)
    assert sorted(names["keys"]) == sorted(target.root + key for key in target.data())
    assert names["manifest"].rows == len(ROWS)
    if any(block.needs_format_api for block in found):
        assert len(Target(s3, target.bucket, "by-options").rows()) == len(ROWS)
