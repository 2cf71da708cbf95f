"""`outfall doctor` against servers: what it finds out, and that nothing of it stays."""

from __future__ import annotations

import pytest

from outfall.errors import TargetError
from tests.integration.s3.support import Target


def test_a_bucket_is_looked_at_and_left_as_it_was(any_target: Target) -> None:
    found = any_target.sink(roll_rows=10).check_connection()
    assert "may be listed and read" in found[0]
    assert "received a part, and was aborted" in found[1]
    assert "may be deleted" in found[2]
    assert "supports If-None-Match and If-Match" in found[3]
    assert any_target.objects() == {}
    assert any_target.uploads() == []


def test_in_a_bucket_with_versions_no_version_is_left(target: Target) -> None:
    target.client.put_bucket_versioning(Bucket=target.bucket, VersioningConfiguration={"Status": "Enabled"})
    assert "is tested when the query first starts" in target.sink().check_connection()[-1]
    left = target.client.list_object_versions(Bucket=target.bucket)
    assert left.get("Versions", []) + left.get("DeleteMarkers", []) == []
    assert target.uploads() == []


def test_a_bucket_that_is_not_there_is_an_error(target: Target) -> None:
    missing = Target(target.server, bucket=f"{target.bucket}-missing")
    with pytest.raises(TargetError, match="create the bucket"):
        missing.sink().check_connection()
