"""What errors of stores mean, as clients raise them: as Azurite, fake-gcs and moto were asked, or built from source."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from fsspec.implementations.memory import MemoryFileSystem

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.file.stores.disk import translated_errors as translated_file_errors
from outfall.filesystems import ExplainedClient
from outfall.recovery.location import translated_errors as translated_log_errors
from outfall.store_errors import Meaning, Operation, StoreError, explained, meaning_of, remedy_of


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def boto(code: str, status: int, request: str = "PutObject") -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, request)


class HttpResponseError(Exception):
    """As azure.core's, which raises it for each status without a class of its own."""

    def __init__(self, code: str | None, status: int) -> None:
        super().__init__(f"The server said so.\nRequestId:1\nErrorCode:{code}")
        self.error_code, self.status_code = code, status


class ResourceNotFoundError(HttpResponseError):
    pass


class HttpError(Exception):
    """As gcsfs'."""

    __module__ = "gcsfs.retry"

    def __init__(self, status: int) -> None:
        super().__init__(f"said so, {status}")
        self.code = status


def named(kind: str) -> Exception:
    module, _, name = kind.rpartition(".")
    found: Exception = type(name, (Exception,), {"__module__": module})("said so")
    return found


S3FS_DENIED = caused(PermissionError("Access Denied"), boto("AccessDenied", 403))

MEANINGS: dict[str, tuple[Exception, Meaning]] = {
    "s3fs, no right": (S3FS_DENIED, Meaning.DENIED),
    "s3fs, expired": (caused(PermissionError("expired"), boto("ExpiredToken", 400)), Meaning.TRANSIENT),
    "s3fs, unknown key": (caused(PermissionError("key"), boto("InvalidAccessKeyId", 403)), Meaning.CREDENTIALS),
    "s3fs, clock": (caused(PermissionError("time"), boto("RequestTimeTooSkewed", 403)), Meaning.CLOCK),
    "s3fs, no bucket": (caused(FileNotFoundError("none"), boto("NoSuchBucket", 404)), Meaning.NO_BUCKET),
    "s3fs, throttled": (caused(OSError(errno.EBUSY, "slow"), boto("SlowDown", 503)), Meaning.TRANSIENT),
    "s3fs, object lock": (
        caused(PermissionError("Access Denied because object protected by object lock."), boto("AccessDenied", 403)),
        Meaning.RETAINED,
    ),
    "boto3, no key": (NoCredentialsError(), Meaning.CREDENTIALS),
    "boto3, unsupported": (boto("NotImplemented", 501), Meaning.UNSUPPORTED),
    "adlfs, no right": (HttpResponseError("AuthorizationPermissionMismatch", 403), Meaning.DENIED),
    "adlfs, no right to delete": (
        caused(RuntimeError("Failed to remove %s for %s"), HttpResponseError("AuthorizationPermissionMismatch", 403)),
        Meaning.DENIED,
    ),
    "adlfs, source not readable": (
        caused(FileNotFoundError(2, "No such file"), ResourceNotFoundError("CannotVerifyCopySource", 403)),
        Meaning.DENIED,
    ),
    "adlfs, no container": (ResourceNotFoundError("ContainerNotFound", 404), Meaning.NO_BUCKET),
    "adlfs, name": (HttpResponseError("InvalidResourceName", 400), Meaning.BAD_NAME),
    "adlfs, signature": (HttpResponseError("AuthenticationFailed", 403), Meaning.CREDENTIALS),
    "adlfs, immutable": (HttpResponseError("BlobImmutableDueToPolicy", 409), Meaning.RETAINED),
    "adlfs, busy": (HttpResponseError("ServerBusy", 503), Meaning.TRANSIENT),
    "adlfs, another refusal": (HttpResponseError("InvalidHeaderValue", 400), Meaning.REFUSED),
    "gcsfs, no right": (OSError("Forbidden: b/lake/o\nno storage.objects.create access"), Meaning.DENIED),
    "gcsfs, retention": (OSError("Forbidden: b\nsubject to the bucket's retention policy"), Meaning.RETAINED),
    "gcsfs, name": (ValueError("Bad Request: b/No\nInvalid bucket name: 'No'"), Meaning.BAD_NAME),
    "gcsfs, rate": (HttpError(429), Meaning.TRANSIENT),
    "gcsfs, not signed in": (named("google.auth.exceptions.DefaultCredentialsError"), Meaning.CREDENTIALS),
    "hdfs": (OSError(errno.EACCES, "AccessControlException: Permission denied: user=a"), Meaning.DENIED),
    "pyarrow, no right": (
        OSError("When getting x: AWS Error ACCESS_DENIED during HeadObject operation: No response body."),
        Meaning.DENIED,
    ),
    "deltalake, no bucket": (
        OSError("Generic S3 error: … status: 404 Not Found, body: <Error><Code>NoSuchBucket</Code></Error>"),
        Meaning.NO_BUCKET,
    ),
    "deltalake, no credentials": (
        OSError(
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms -"
            " Server returned non-2xx status code 403 Forbidden"
        ),
        Meaning.CREDENTIALS,
    ),
    "deltalake, no right": (OSError("Generic MicrosoftAzure error: 403 Forbidden: "), Meaning.DENIED),
    "no answer": (ConnectionResetError("reset"), Meaning.TRANSIENT),
    "unknown": (RuntimeError("something"), Meaning.TRANSIENT),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_what_a_client_raises_has_one_meaning(name: str) -> None:
    error, meaning = MEANINGS[name]
    assert meaning_of(error) is meaning


@pytest.mark.parametrize(
    ("error", "scheme", "operation", "right"),
    [
        (S3FS_DENIED, "s3", None, "s3:PutObject"),
        (caused(PermissionError("no"), boto("AccessDenied", 403, "DeleteObjects")), "s3", None, "s3:DeleteObject"),
        (boto("403", 403, "HeadObject"), "s3", None, "s3:GetObject"),
        (PermissionError("no"), "s3", Operation.COPY, "s3:PutObject, and s3:GetObject"),
        (HttpResponseError(None, 403), "abfs", Operation.DELETE, "d in a SAS"),
        (HttpResponseError(None, 403), "az", Operation.LIST, "l in a SAS"),
        (OSError("Forbidden: b"), "gs", Operation.CREATE, "storage.objects.create"),
        (PermissionError("no"), "hdfs", Operation.CREATE, "rwx on the directory"),
        (OSError("Error performing PUT http://s/b/t: 403 Forbidden"), "s3", Operation.READ, "s3:PutObject"),
        (OSError("Error performing GET http://s/b?list-type=2&prefix=t: 403 Forbidden"), "s3", None, "s3:ListBucket"),
        (OSError("Error performing DELETE http://s/c/t: 403 Forbidden"), "az", None, "d in a SAS"),
        (OSError("AWS Error ACCESS_DENIED during CreateMultipartUpload operation: no"), "sqlite", None, "s3:PutObject"),
        (boto("AccessDeniedException", 403, "GetTable"), "arn", None, "the right to do this there"),
    ],
)
def test_the_missing_right_is_named_as_its_store_names_it(
    error: Exception, scheme: str, operation: Operation | None, right: str
) -> None:
    assert right in remedy_of(error, scheme, operation)


def client(monkeypatch: pytest.MonkeyPatch, raised: Exception, scheme: str = "abfs") -> ExplainedClient:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    for method in ("ls", "cat_file", "pipe_file", "put_file", "rm_file", "cp_file"):
        monkeypatch.setattr(MemoryFileSystem, method, fail)
    return ExplainedClient(MemoryFileSystem(), scheme)


CALLS: dict[str, Callable[[ExplainedClient], Any]] = {
    "ls": lambda fs: fs.ls("a"),
    "cat_file": lambda fs: fs.cat_file("a"),
    "pipe_file": lambda fs: fs.pipe_file("a", b""),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_container_is_no_missing_file(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = caused(FileNotFoundError(errno.ENOENT, "none", "lake/a"), ResourceNotFoundError("ContainerNotFound", 404))
    with pytest.raises(StoreError, match="ContainerNotFound") as caught:
        CALLS[call](client(monkeypatch, raised))
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_file_that_google_does_not_find_is_missing_unless_it_was_to_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its 404 does not say what is missing."""
    google = client(monkeypatch, FileNotFoundError("b/nolake/o"), "gs")
    for call in ("ls", "cat_file"):
        with pytest.raises(FileNotFoundError):
            CALLS[call](google)
    with pytest.raises(StoreError) as caught:
        CALLS["pipe_file"](google)
    assert caught.value.meaning is Meaning.NO_BUCKET


@pytest.mark.parametrize(
    ("raised", "in_files", "in_logs", "text"),
    [
        (HttpResponseError("AuthorizationFailure", 403), TargetError, ConfigurationError, "grant Azure's rights"),
        (ResourceNotFoundError("ContainerNotFound", 404), TargetError, ConfigurationError, "create its bucket or"),
        (HttpResponseError("InvalidResourceName", 400), TargetError, ConfigurationError, "correct the name of the"),
        (HttpResponseError("ServerBusy", 503), TransientError, TransientError, "up and reachable"),
        (named("azure.core.exceptions.ClientAuthenticationError"), ConfigurationError, ConfigurationError, "provide"),
    ],
)
def test_files_and_logs_say_what_to_do(
    raised: Exception,
    in_files: type[OutfallError],
    in_logs: type[OutfallError],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    azure = client(monkeypatch, raised)
    with pytest.raises(OutfallError, match=text) as of_files, translated_file_errors("writing", "abfs://lake/a"):
        azure.pipe_file("a", b"")
    with pytest.raises(OutfallError, match=text) as of_logs, translated_log_errors("appending", "sink", "abfs://lake"):
        azure.pipe_file("a", b"")
    assert (type(of_files.value), type(of_logs.value)) == (in_files, in_logs)
    assert of_logs.value.__cause__ is of_files.value.__cause__ is raised
    assert "POSIX" not in str(of_logs.value)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), TargetError, "grant s3:PutObject"),
        (OSError("connection reset"), TransientError, "look there"),
        (OSError(errno.EACCES, "a disk's"), TransientError, "look there"),
    ],
)
def test_tables_say_what_to_do(error: OSError, kind: type[OutfallError], text: str) -> None:
    made = explained(error, "writing failed", url="s3a://lake/t", operation=Operation.CREATE, do="look there")
    assert type(made) is kind
    assert text in str(made)
