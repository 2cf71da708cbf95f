"""S3's errors as Outfall's: what happened, why, and what to do."""

from __future__ import annotations

from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

from outfall.errors import OutfallError, TargetError, TargetLostError, TransientError
from outfall.s3.errors import PASSING, classify, code_of, is_not_implemented, is_untrusted, status_of

_RIGHTS = (
    "grant s3:PutObject, s3:GetObject, s3:ListBucket, s3:AbortMultipartUpload, s3:ListMultipartUploadParts and"
    " s3:ListBucketMultipartUploads on the bucket and the prefix, and s3:DeleteObject below _outfall/;"
    ' for on_existing="overwrite" s3:DeleteObject on the prefix, for tags s3:PutObjectTagging, for acl s3:PutObjectAcl,'
    " and for encryption with a KMS key kms:GenerateDataKey and kms:Decrypt on the key"
)
_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")


def translated(doing: str, error: BaseException) -> OutfallError:
    """Make our error of boto3's.

    Args:
        doing: what failed, as `"completing s3://bucket/key"`.
        error: one of `answers.FAILURES`.
    """
    what, why = f"{doing} failed", describe(error)
    if classify(error) in PASSING:
        return TransientError(what, why=why, do="nothing, if it passes: the task or the query is tried again")
    return TargetError(what, why=why, do=_remedy(error))


def piece_lost(url: str) -> TargetLostError:
    """Make the error for an object that holds rows which wait, and that is not there."""
    return TargetLostError(
        f"{url} is gone, or not what was written",
        why="it holds rows that wait for a large object. Somebody deleted it, or a lifecycle rule did",
        do="restore it, or start the query with a new checkpoint",
    )


def describe(error: BaseException) -> str:
    """Return what S3 or boto3 said."""
    if isinstance(error, ClientError):
        message = error.response.get("Error", {}).get("Message", "")
        return f"{code_of(error)} (HTTP {status_of(error)}): {message}".rstrip(": ")
    return f"{type(error).__name__}: {error}"


def _remedy(error: BaseException) -> str:
    if isinstance(error, NoCredentialsError | PartialCredentialsError) or code_of(error) in _KEYS:
        return "give driver and executors credentials that boto3 finds, or a session_factory"
    if code_of(error) == "NoSuchBucket":
        return "create the bucket, or correct its name, the region or the endpoint_url"
    if code_of(error) == "RequestTimeTooSkewed":
        return "set the clock of the host that asked: S3 takes requests whose time is at most 15 minutes off"
    if is_untrusted(error):
        return "have driver and executors trust the certificate, as by AWS_CA_BUNDLE, or correct the endpoint_url"
    if is_not_implemented(error):
        return "leave out the option that the store does not know, or take another store"
    if isinstance(error, ClientError) and status_of(error) == 403:
        return _RIGHTS
    return "correct the options, the bucket or its policy"
