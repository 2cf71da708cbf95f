"""What an error of a store means: one table for all clients, and the errors of sinks and of the log that follow.

A store answers with a code and a status. Its client (s3fs, adlfs, gcsfs, boto3, pyarrow, object_store of deltalake)
hides them in an exception of its own, in the cause of that exception, or in its text. Sources: S3 API Reference, "Error
responses"; Azure, "Blob service error codes"; Google Cloud Storage, "HTTP status and error codes for JSON".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any
from urllib.parse import urlsplit

from outfall.errors import ConfigurationError, OutfallError, TargetError, TerminalError, TransientError
from outfall.location import HDFS, REMOTE
from outfall.urls import scheme_of


class Meaning(Enum):
    """What a user has to do about an error of a store."""

    DENIED = auto()
    """A right is missing."""
    RETAINED = auto()
    """A policy keeps an object from being replaced or deleted."""
    NO_BUCKET = auto()
    """The bucket or the container does not exist."""
    BAD_NAME = auto()
    """The name of the bucket or the container is not valid."""
    CREDENTIALS = auto()
    """Credentials are missing, incomplete or unknown to the store."""
    UNTRUSTED = auto()
    """The certificate of the store is not trusted."""
    CLOCK = auto()
    """The clock of the requesting host is wrong."""
    UNSUPPORTED = auto()
    """The store does not support the request."""
    REFUSED = auto()
    """The store refuses the request for another reason, and would again."""
    TAKEN = auto()
    """An object with the name exists, or is not in the expected version."""
    TRANSIENT = auto()
    """The same request may succeed later."""


class Operation(Enum):
    """What a request does, and so the rights that it requires."""

    LIST = auto()
    READ = auto()
    CREATE = auto()
    COPY = auto()
    DELETE = auto()


_CODES = {
    Meaning.DENIED: (
        "AccessDenied", "ACCESS_DENIED", "AccountIsDisabled", "AccountProblem", "AllAccessDisabled",
        "AuthorizationFailure", "AuthorizationPermissionMismatch", "AuthorizationProtocolMismatch",
        "AuthorizationResourceTypeMismatch", "AuthorizationServiceMismatch", "AuthorizationSourceIPMismatch",
        "InsufficientAccountPermissions", "InvalidPayer",
    ),
    Meaning.RETAINED: ("BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold", "RetentionPolicyNotMet"),
    Meaning.NO_BUCKET: ("ContainerNotFound", "FilesystemNotFound", "NoSuchBucket", "NO_SUCH_BUCKET"),
    Meaning.BAD_NAME: ("InvalidBucketName", "InvalidResourceName", "KeyTooLongError"),
    Meaning.CREDENTIALS: (
        "AuthenticationFailed", "InvalidAccessKeyId", "INVALID_ACCESS_KEY_ID", "InvalidAuthenticationInfo",
        "InvalidToken", "NoAuthenticationInformation", "SignatureDoesNotMatch", "SIGNATURE_DOES_NOT_MATCH",
    ),
    Meaning.CLOCK: ("RequestTimeTooSkewed",),
    Meaning.UNSUPPORTED: ("NotImplemented",),
    Meaning.TAKEN: ("BlobAlreadyExists", "ConditionNotMet", "PreconditionFailed"),
    Meaning.TRANSIENT: (
        # Credentials that expire are renewed.
        "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired",
        "BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
    ),
}  # fmt: skip
_MEANING_OF = {code: meaning for meaning, codes in _CODES.items() for code in codes}

_STATUSES = {
    401: Meaning.CREDENTIALS,
    403: Meaning.DENIED,
    412: Meaning.TAKEN,
    501: Meaning.UNSUPPORTED,
}
_MAY_PASS = {404, 408, 409, 416, 425, 429}
"""Statuses below 500 after which the same request may succeed, or of which the caller decides."""

_CLASSES = {
    # By name, because the installed clients vary and none of them is loaded here.
    **dict.fromkeys(
        (
            "azure.core.exceptions.ClientAuthenticationError",
            "botocore.exceptions.NoAuthTokenError",
            "botocore.exceptions.NoCredentialsError",
            "botocore.exceptions.NoRegionError",
            "botocore.exceptions.PartialCredentialsError",
            "botocore.exceptions.ProfileNotFound",
            "botocore.exceptions.SSOError",
            "google.auth.exceptions.DefaultCredentialsError",
        ),
        Meaning.CREDENTIALS,
    ),
    "ssl.SSLCertVerificationError": Meaning.UNTRUSTED,
    "aiohttp.client_exceptions.ClientConnectorCertificateError": Meaning.UNTRUSTED,
}

_INSTANCE = "//169.254.169.254/"
"""The address at which a host of a cloud has credentials. Clients ask it if they have found none elsewhere."""
_CODE_IN_TEXT = re.compile(r"<Code>(\w+)</Code>|ErrorCode:(\w+)|AWS Error ([A-Z_]+)|\((\w+)\) when calling the ")
_STATUS_IN_TEXT = re.compile(
    r"\b([45]\d\d) (?:Forbidden|Unauthorized|Bad Request|Not Implemented)|HTTP (?:status )?([45]\d\d)"
)
_REQUEST_IN_TEXT = re.compile(r"(?:during|when calling the) (\w+) operation")
_REQUEST_OF_PYARROW = re.compile(r"AWS Error \w+ during (\w+) operation")
"""Only its client of S3 says so, and the URL of a catalog may not show where the files are."""
_OBJECT_STORE_IN_TEXT = re.compile(r"Error performing ([A-Z]+) (\S+)")
"""Method and URL of a request, in errors of object_store (deltalake)."""
_RETENTION = re.compile(r"retention|object lock|immutab|legal hold|under active hold|\bworm\b", re.IGNORECASE)

_S3_REQUESTS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CopyObject": "s3:PutObject and s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "ListParts": "s3:ListMultipartUploadParts",
}
"""The right of each request of S3. All others require `s3:PutObject`."""

_AZURE = {
    Operation.LIST: "Azure's right to list (l in a SAS; the data action blobs/read of a role)",
    Operation.READ: "Azure's right to read (r in a SAS; the data action blobs/read of a role)",
    Operation.CREATE: "Azure's rights to create and write (c and w in a SAS; the data action blobs/write of a role)",
    Operation.DELETE: "Azure's right to delete (d in a SAS; the data action blobs/delete of a role)",
}
_RIGHTS = {
    "s3": {
        Operation.LIST: "s3:ListBucket",
        Operation.READ: "s3:GetObject",
        Operation.CREATE: "s3:PutObject",
        Operation.DELETE: "s3:DeleteObject",
    },
    "gs": {
        Operation.LIST: "storage.objects.list",
        Operation.READ: "storage.objects.get",
        Operation.CREATE: "storage.objects.create (and storage.objects.delete, if the object exists)",
        Operation.DELETE: "storage.objects.delete",
    },
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    HDFS: {
        Operation.LIST: "r-x on the directory",
        Operation.READ: "r on the file, and x on its directories",
        Operation.CREATE: "rwx on the directory",
        Operation.DELETE: "rwx on the directory",
    },
}
"""By scheme, the right that each operation requires."""

REMEDIES = {
    Meaning.RETAINED: "exclude the directory from the policy that keeps objects (object lock, retention, immutability)",
    Meaning.NO_BUCKET: "create its bucket or container, or correct the name, the region or the endpoint",
    Meaning.BAD_NAME: "correct the name of the bucket or the container: the store does not allow it",
    Meaning.CREDENTIALS: "provide credentials and region in the environment or the options of the store's client,"
    " on driver and executors",
    Meaning.UNTRUSTED: "make the driver and executors trust the certificate, or correct the endpoint",
    Meaning.CLOCK: "set the clock of the requesting host",
    Meaning.UNSUPPORTED: "use another store: this one does not support the request",
    Meaning.REFUSED: "correct the location, the configuration of the store's client, or the policy of the store",
    Meaning.TAKEN: "find the other writer of that object",
    Meaning.TRANSIENT: "check that the store is up and reachable at the address in its client's configuration",
}


class StoreError(OSError):
    """A request to a store failed. What `ExplainedClient` raises, with the client's error as its cause."""

    def __init__(self, error: BaseException, meaning: Meaning, remedy: str) -> None:
        """Describe a client's error."""
        super().__init__(described(error))
        self.meaning = meaning
        self.remedy = remedy


class StoreDeniedError(StoreError, PermissionError):
    """A right is missing, or a policy forbids the request."""


def store_error(error: BaseException, scheme: str, operation: Operation | None) -> StoreError:
    """Return the `StoreError` of a client's error, for a store with a scheme of `Location`."""
    meaning = meaning_of(error)
    denied = meaning in (Meaning.DENIED, Meaning.RETAINED)
    return (StoreDeniedError if denied else StoreError)(error, meaning, remedy_of(error, scheme, operation))


def no_bucket(error: BaseException) -> StoreError:
    """Return the `StoreError` of a request that, by what it does, misses the bucket."""
    return StoreError(error, Meaning.NO_BUCKET, REMEDIES[Meaning.NO_BUCKET])


def translated(
    error: StoreError, what: str, *, then: str, refused: type[TerminalError] = TargetError, **where: Any
) -> OutfallError:
    """Return the error of Outfall for a failed request. `what` says what failed; `then` what follows from it.

    It is a `TransientError` if the request may succeed later, a `ConfigurationError` without usable credentials, and
    `refused` otherwise.
    """
    kind: type[OutfallError] = refused
    if error.meaning in (Meaning.TRANSIENT, Meaning.TAKEN):
        kind = TransientError
    elif error.meaning is Meaning.CREDENTIALS:
        kind = ConfigurationError
    return kind(what, why=str(error), do=f"{error.remedy}; {then}", **where)


def explained(
    error: Exception, what: str, *, url: str, operation: Operation, do: str, why: str | None = None, **where: Any
) -> OutfallError:
    """Return the error of Outfall for an error of a client without `ExplainedClient`, as in tables.

    It is a `TargetError` with the remedy if a store refuses the request for good. Otherwise, and for a disk, it is a
    `TransientError` with the remedy `do`. `url` is the location that was used.
    """
    why = why or f"{type(error).__name__}: {error}"
    if not refuses(error):
        return TransientError(what, why=why, do=do, **where)
    return TargetError(what, why=why, do=remedy_of(error, _canonical(url), operation), **where)


def refuses(error: Exception) -> bool:
    """Return whether a store has refused a request for good, as far as an error of its client shows."""
    of_client = isinstance(error, OSError) and not error.errno
    return of_client and meaning_of(error) not in (Meaning.TRANSIENT, Meaning.TAKEN)


def _canonical(url: str) -> str:
    """Return the scheme of a URL as `Location` has it."""
    scheme = scheme_of(url)
    return REMOTE.get(scheme, scheme)


def meaning_of(error: BaseException) -> Meaning:
    """Return what an error of a store's client means, by the first answer of the store in the chain of its causes."""
    found = _found(error)
    if found in (Meaning.DENIED, Meaning.REFUSED) and any(_RETENTION.search(str(each)) for each in _chain(error)):
        return Meaning.RETAINED
    return found or Meaning.TRANSIENT


def is_known(error: BaseException) -> bool:
    """Return whether an error contains an answer of a store, or the name of a known error."""
    return _found(error) is not None


def remedy_of(error: BaseException, scheme: str = "s3", operation: Operation | None = None) -> str:
    """Return what a user has to do about an error. For a missing right, it names the right."""
    meaning = meaning_of(error)
    if meaning is not Meaning.DENIED:
        return REMEDIES[meaning]
    operation = _operation_of(error) or operation
    right = _right_of_request(error, of_s3=scheme == "s3")
    rights = _RIGHTS.get(scheme, {})
    if operation is Operation.COPY and rights:
        right = right or f"{rights[Operation.CREATE]}, and {rights[Operation.READ]}"
    right = right or (rights.get(operation) if operation else None)
    return f"grant {right}" if right else "grant the user of the query the right to do this there"


def described(error: BaseException) -> str:
    """Return the text of a client's error in one line, with the code of the store's answer."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    code = next((code for code, _ in _answers(error) if code and code not in text), "")
    return f"{type(error).__name__}: {text}" + (f" ({code})" if code else "")


def _found(error: BaseException) -> Meaning | None:
    for each in _chain(error):
        for code, status in _answers_of(each):
            if 400 <= status < 500 and _INSTANCE in str(each):
                return Meaning.CREDENTIALS
            if code in _MEANING_OF:
                return _MEANING_OF[code]
            if status in _STATUSES:
                return _STATUSES[status]
            if 400 <= status < 500 and status not in _MAY_PASS:
                return Meaning.REFUSED
            if status:
                return Meaning.TRANSIENT
    # Only then by class: s3fs raises PermissionError for expired credentials too.
    for each in _chain(error):
        for kind in type(each).__mro__:
            if meaning := _CLASSES.get(f"{kind.__module__}.{kind.__name__}"):
                return meaning
        if isinstance(each, PermissionError) or str(each).startswith("Forbidden: "):  # gcsfs
            return Meaning.DENIED
        if isinstance(each, ValueError) and str(each).startswith("Bad Request: "):  # gcsfs
            return Meaning.BAD_NAME if "bucket name" in str(each).lower() else Meaning.REFUSED
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _answers(error: BaseException) -> Iterator[tuple[str, int]]:
    return (answer for each in _chain(error) for answer in _answers_of(each))


def _answers_of(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield code and status of a store's answer: of the fields of an exception first, then of its text."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        yield str(response.get("Error", {}).get("Code", "")), _number(status)
        return
    code = getattr(error, "error_code", None)  # azure
    status = _number(getattr(error, "status_code", None)) or _number(getattr(error, "status", None))
    if type(error).__module__.startswith("gcsfs"):
        status = _number(getattr(error, "code", None))
    if code or status:
        yield str(getattr(code, "value", code) or ""), status
        return
    text = str(error)
    codes = [next(filter(None, groups)) for groups in _CODE_IN_TEXT.findall(text)]
    statuses = [int(next(filter(None, groups))) for groups in _STATUS_IN_TEXT.findall(text)]
    if codes or statuses:
        yield (codes or [""])[0], (statuses or [0])[0]


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else 0


def _operation_of(error: BaseException) -> Operation | None:
    """Return the operation of a request of object_store; `None` if the error names none."""
    for each in _chain(error):
        named = _OBJECT_STORE_IN_TEXT.search(str(each))
        if named:
            query = urlsplit(named[2]).query
            if named[1] == "DELETE" or query == "delete":
                return Operation.DELETE
            if named[1] in ("GET", "HEAD"):
                return Operation.LIST if "prefix=" in query else Operation.READ
            return Operation.CREATE
    return None


def _right_of_request(error: BaseException, *, of_s3: bool) -> str | None:
    """Return the right that a request of S3 requires; `None` if the error names none, or may be of another service."""
    for each in _chain(error):
        named = (_REQUEST_IN_TEXT if of_s3 else _REQUEST_OF_PYARROW).search(str(each))
        request = (of_s3 and getattr(each, "operation_name", None)) or (named[1] if named else None)
        if request:
            return _S3_REQUESTS.get(request, "s3:PutObject")
    return None
