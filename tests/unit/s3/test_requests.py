"""Which requests an epoch sends, and that the policy of the documentation permits them all."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
import pytest

from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from tests.unit.support.fake_s3 import FakeS3

ROOT = Path(__file__).parents[3]
BUCKET, PREFIX, HIDDEN = "arn:aws:s3:::lake", "arn:aws:s3:::lake/flights/*", "arn:aws:s3:::lake/flights/_outfall/*"
ACTIONS = {
    "abort_multipart_upload": ("s3:AbortMultipartUpload", PREFIX),
    "complete_multipart_upload": ("s3:PutObject", PREFIX),
    "create_multipart_upload": ("s3:PutObject", PREFIX),
    "delete_object": ("s3:DeleteObject", HIDDEN),
    "delete_objects": ("s3:DeleteObject", HIDDEN),
    "get_bucket_versioning": ("s3:GetBucketVersioning", BUCKET),
    "get_object": ("s3:GetObject", PREFIX),
    "head_object": ("s3:GetObject", PREFIX),
    "list_multipart_uploads": ("s3:ListBucketMultipartUploads", BUCKET),
    "list_objects_v2": ("s3:ListBucket", BUCKET),
    "list_parts": ("s3:ListMultipartUploadParts", PREFIX),
    "put_object": ("s3:PutObject", PREFIX),
    "upload_part": ("s3:PutObject", PREFIX),
    "upload_part_copy": ("s3:PutObject", PREFIX),
}
"""The actions of S3's requests and their resource types (Service Authorization Reference, Amazon S3)."""


def test_the_documented_policy_permits_what_the_sink_sends_and_no_more() -> None:
    (policy,) = re.findall(r"```json\n(\{\s+\"Version\".*?)```", (ROOT / "docs/s3.md").read_text(), re.DOTALL)
    granted = set()
    for statement in json.loads(policy)["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        granted |= {(action, statement["Resource"]) for action in actions}
    code = "".join(file.read_text() for file in (ROOT / "connectors/outfall/s3").rglob("*.py"))
    requests = set(re.findall(r'"([a-z_0-9]+)"', code)) & set(dir(boto3.client("s3", region_name="us-east-1")))
    assert {ACTIONS[request] for request in requests} == granted


def counted(fake: FakeS3) -> Counter[str]:
    """The requests since the last call, by name and by kind of their key."""
    kinds = Counter(f"{name} {_kind(str(arguments.get('Key', '')))}".rstrip() for name, arguments in fake.calls)
    fake.calls.clear()
    return kinds


def _kind(key: str) -> str:
    if "/pieces/" in key:
        return "piece"
    if "/manifests/" in key:
        return "manifest"
    return "record" if "/_outfall/" in key else ""


@pytest.mark.parametrize("inline", [False, True])
def test_the_requests_of_an_epoch_are_those_that_the_documentation_counts(inline: bool) -> None:
    fake = FakeS3()
    sink = fake.sink(roll_rows=40, inline_bytes="64 KiB" if inline else 0)
    driver = LocalDriver(sink, f"memory://{uuid.uuid4().hex}", options=EpochOptions(worker_count=1))
    rows: list[Any] = [{"id": number} for number in range(10)]
    epochs = []
    for number, batch in enumerate([rows, [], rows, rows, rows]):
        driver.run_epoch(number, [batch])
        epochs.append(counted(fake))
    empty = Counter({
        "get_object record": 2, "put_object record": 1, "list_objects_v2": 2, "list_multipart_uploads": 1,
    })  # fmt: skip
    publishing = empty + Counter({"get_object record": 3, "put_object record": 1, "put_object manifest": 1})
    assert epochs[1] == empty
    if inline:
        assert epochs[2] == empty
        assert epochs[4] == publishing + Counter({"put_object": 1})
    else:
        assert epochs[2] == empty + Counter({"get_object record": 1, "put_object piece": 1})
        upload = ("create_multipart_upload", "upload_part", "complete_multipart_upload")
        assert epochs[4] == publishing + Counter(upload) + Counter({"get_object piece": 3, "delete_objects": 1})
