"""The client of a registry on scripted responses: what is asked, what is kept, and what each response means."""

from __future__ import annotations

import json
import pickle
import ssl
from typing import Any

import pyarrow as pa
import pytest
from urllib3 import PoolManager
from urllib3.exceptions import SSLError

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.schema_registry import SchemaRegistryOptions, client, column_reader
from outfall.schema_registry.client import NotRegisteredError, ReferencesError, SchemaRefusedError, SchemaRegistry
from outfall.schema_registry.column_reader import ColumnReader
from outfall.schema_registry.schemas import Reference, RegisteredSchema, Schema, WholeSchema
from outfall.schema_registry.transport import RegistryResponse, RegistryTransport

LONG, TEXT = '"long"', '"string"'
OPTIONS = SchemaRegistryOptions.parse({"url": "http://localhost:1", "retry_deadline": 0.001})


class Scripted(RegistryTransport):
    """Responds by method and path; a list of responses is used up one by one."""

    def __init__(self, responses: dict[str, Any]) -> None:
        self.where = "http://localhost:1"
        self.responses = responses
        self.seen: list[str] = []
        self.bodies: list[Any] = []

    def send(self, method: str, path: str, body: bytes | None) -> RegistryResponse:
        self.seen.append(f"{method} {path}")
        self.bodies.append(None if body is None else json.loads(body))
        found = self.responses[f"{method} {path}"]
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        status, content = found if isinstance(found, tuple) else (200, found)
        return RegistryResponse(status, content, f"status {status}, {content}")


def registry(**responses: Any) -> tuple[SchemaRegistry, Scripted]:
    transport = Scripted({name.replace("__", " ", 1): value for name, value in responses.items()})
    return SchemaRegistry(OPTIONS, transport), transport


def missing(code: int) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": "not found"}


def test_a_version_is_confirmed_by_its_id_which_is_asked_once() -> None:
    latest = {"subject": "a/b", "version": 3, "id": 7, "schema": '"long"'}
    asked, transport = registry(
        **{"GET__/subjects/a%2Fb/versions/latest": latest, "GET__/schemas/ids/7": {"schema": ' "long"'}}
    )
    found = asked.version("a/b")
    assert found == RegisteredSchema(7, Schema(' "long"'), "a/b", 3)
    assert asked.version("a/b") == found
    assert asked.schema(7) == RegisteredSchema(7, Schema(' "long"'))
    assert transport.seen == [
        "GET /subjects/a%2Fb/versions/latest", "GET /schemas/ids/7", "GET /subjects/a%2Fb/versions/latest"
    ]  # fmt: skip


def test_another_schema_under_the_same_id_is_an_error() -> None:
    first, second = ({"version": n, "id": 7, "schema": text} for n, text in ((1, LONG), (2, TEXT)))
    asked, _ = registry(
        **{"GET__/subjects/s/versions/latest": [first, second], "GET__/schemas/ids/7": {"schema": LONG}}
    )
    asked.version("s")
    with pytest.raises(TargetError, match="two schemas with the id 7"):
        asked.version("s")


def test_only_so_many_schemas_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_SCHEMAS", 2)
    asked, transport = registry(**{f"GET__/schemas/ids/{n}": {"schema": LONG} for n in (1, 2, 3)})
    for number in (1, 2, 1, 3, 1, 2):
        asked.schema(number)
    assert [seen[-1] for seen in transport.seen] == ["1", "2", "3", "2"]


def test_an_id_that_the_registry_does_not_have_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(client, "_MOST_RECENT", 2)
    absent = {f"GET__/schemas/ids/{n}": missing(40403) for n in (2, 3)}
    asked, transport = registry(**{"GET__/schemas/ids/1": [missing(40403), {"schema": LONG}], **absent})
    for _ in range(3):
        with pytest.raises(NotRegisteredError, match="does not have the schema with the id 1"):
            asked.schema(1)
    assert len(transport.seen) == 1
    now += 31
    assert asked.schema(1).schema.text == LONG
    for number in (2, 3, 2, 3):
        with pytest.raises(NotRegisteredError):
            asked.schema(number)
    assert [seen[-1] for seen in transport.seen] == ["1", "1", "2", "3"]


@pytest.mark.parametrize("alone", [True, False], ids=["one id", "several"])
def test_a_message_is_read_whose_schema_a_server_does_not_have_yet(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    late = [missing(40403), missing(40403), {"schema": LONG}]
    asked, _ = registry(**{"GET__/schemas/ids/1": late, "GET__/schemas/ids/2": [missing(40403)] * 3})
    monkeypatch.setattr(column_reader, "registry_of", lambda _: asked)
    reader = ColumnReader(OPTIONS, WholeSchema(Schema(LONG)), None, pa.int64())
    good, bad = b"\0\0\0\0\1\x02", b"\0\0\0\0\2\x02"
    column, errors = reader.column(pa.array([good] if alone else [good, bad], pa.binary()))
    assert column.to_pylist() == ([1] if alone else [1, None])
    assert list(errors) == ([] if alone else [1])
    assert pauses == [0.0, 0.2, 0.8]
    reader.column(pa.array([good if alone else bad], pa.binary()))
    assert len(pauses) == 3


def test_ids_of_others_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    asked, transport = registry(**{f"GET__/schemas/ids/{n}": missing(40403) for n in range(101)})
    asked.look_up(range(101))
    assert (pauses, len(transport.seen)) == ([0.0], 101)


def test_an_outage_is_no_absent_id() -> None:
    asked, _ = registry(**{"GET__/schemas/ids/1": TransientError("down")})
    with pytest.raises(TransientError):
        asked.look_up([1])


def test_what_was_said_lately_is_not_asked_again_by_who_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    latest = {"version": 1, "id": 7, "schema": LONG}
    asked, transport = registry(
        **{
            "GET__/subjects/s/versions/latest": [latest, latest | {"version": 2}],
            "GET__/schemas/ids/7": {"schema": LONG},
            "GET__/subjects/t/versions/latest": missing(40401),
            "POST__/subjects/s": {"id": 7, "version": 1},
        }
    )
    for _ in range(3):
        assert asked.version("s", within=60).version == 1
        assert asked.register("s", Schema(LONG), within=60).id == 7
        with pytest.raises(NotRegisteredError):
            asked.version("t", within=60)
    assert len(transport.seen) == 4
    now += 61
    assert asked.version("s", within=60).version == 2


@pytest.mark.parametrize("known", [True, False])
def test_a_schema_is_registered_only_if_its_subject_does_not_have_it(known: bool) -> None:
    wanted = Schema('{"type": "object"}', "JSON", (Reference("r", "other", 2),))
    asked, transport = registry(
        **{
            "POST__/subjects/s": {"id": 5, "version": 1} if known else missing(40403),
            "POST__/subjects/s/versions": {"id": 5},
            "GET__/schemas/ids/5": {"schema": wanted.text, "schemaType": "JSON"},
        }
    )
    assert asked.register("s", wanted).id == 5
    assert ("POST /subjects/s/versions" in transport.seen) is not known
    references = [{"name": "r", "subject": "other", "version": 2}]
    assert transport.bodies[0] == {"schema": wanted.text, "schemaType": "JSON", "references": references}


def test_references_come_after_those_that_they_refer_to() -> None:
    def version(text: str, schema_id: int, *names: str) -> dict[str, Any]:
        references = [{"name": name, "subject": name, "version": 1} for name in names]
        return {"id": schema_id, "schema": text, "references": references}

    inner, outer = version(LONG, 1), version(TEXT, 2, "inner")
    asked, _ = registry(
        **{
            "GET__/subjects/inner/versions/1": inner, "GET__/subjects/outer/versions/1": outer,
            "GET__/schemas/ids/1": inner, "GET__/schemas/ids/2": outer,
        }
    )  # fmt: skip
    root = Schema('"outer"', references=(Reference("outer", "outer", 1), Reference("inner", "inner", 1)))
    assert list(asked.referenced(root)) == ["inner", "outer"]


def versions_by_name(*texts: str) -> tuple[SchemaRegistry, Schema]:
    """Return a registry with versions of `common`, and a schema of which each is a reference, by one name."""
    asked, _ = registry(
        **{f"GET__/subjects/common/versions/{number}": {"id": number, "schema": text}
           for number, text in enumerate(texts, 1)},
        **{f"GET__/schemas/ids/{number}": {"schema": text} for number, text in enumerate(texts, 1)},
    )  # fmt: skip
    numbers = range(1, len(texts) + 1)
    return asked, Schema(TEXT, references=tuple(Reference("common.proto", "common", number) for number in numbers))


def test_two_schemas_by_one_name_are_an_error() -> None:
    asked, root = versions_by_name(TEXT, LONG)
    with pytest.raises(ReferencesError, match=r"two others by the name 'common.proto'.*version 1 and common version 2"):
        asked.referenced(root)
    asked, root = versions_by_name(TEXT, TEXT)
    assert dict(asked.referenced(root)) == {"common.proto": Schema(TEXT)}


def test_a_schema_that_refers_to_itself_is_an_error() -> None:
    own = {"id": 1, "schema": TEXT, "references": [{"name": "a", "subject": "a", "version": 1}]}
    asked, _ = registry(**{"GET__/subjects/a/versions/1": own, "GET__/schemas/ids/1": own})
    with pytest.raises(TargetError, match="refers to itself"):
        asked.referenced(Schema(TEXT, references=(Reference("a", "a", 1),)))


@pytest.mark.parametrize(
    ("response", "kind", "message"),
    [
        ((401, {"error_code": 401, "message": "who?"}), ConfigurationError, "denies access to the subject s"),
        ((403, {"error_code": 40301, "message": "no"}), ConfigurationError, "denies access"),
        (missing(40401), NotRegisteredError, "does not have the subject s"),
        (missing(404), TargetError, "did not return the subject s.*path"),
        ((404, "<html>"), TargetError, "did not return the subject s.*path"),
        ((409, {"error_code": 409, "message": "incompatible"}), SchemaRefusedError, "incompatible"),
        ((422, {"error_code": 42201, "message": "invalid"}), SchemaRefusedError, "invalid"),
        ({"id": "7", "schema": LONG}, TargetError, "another form"),
        ({"id": 7, "schema": 1}, TargetError, "another form"),
        ({"id": 7, "schema": LONG, "schemaType": "XML"}, TargetError, "another form"),
        ({"id": 7, "schema": LONG, "references": [{"name": "x"}]}, TargetError, "another form"),
        ([1], TargetError, "another form"),
        (TransientError("down"), TransientError, "down"),
    ],
)
def test_what_a_response_means(response: Any, kind: type[OutfallError], message: str) -> None:
    asked, _ = registry(**{"GET__/subjects/s/versions/latest": [response] * 9})
    with pytest.raises(kind, match=message) as caught:
        asked.version("s")
    assert type(caught.value) is kind


def test_an_outage_is_waited_for() -> None:
    latest = {"id": 7, "schema": LONG}
    transport = Scripted(
        {"GET /subjects/s/versions/latest": [TransientError("down"), latest], "GET /schemas/ids/7": {"schema": LONG}}
    )
    asked = SchemaRegistry(OPTIONS.model_copy(update={"retry_deadline": SchemaRegistryOptions.model_fields[
        "retry_deadline"].default}), transport)  # fmt: skip
    assert asked.version("s").id == 7


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), TransientError),
        (ssl.SSLCertVerificationError("self-signed"), TargetError),
    ],
    ids=["a server that closes the connection", "an untrusted certificate"],
)
def test_a_broken_handshake_is_an_outage(
    cause: Exception, kind: type[OutfallError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise SSLError(cause)

    monkeypatch.setattr(PoolManager, "request", fail)
    with pytest.raises(kind):
        RegistryTransport(SchemaRegistryOptions.parse("https://registry.test")).send("GET", "/subjects", None)


def test_a_proxy_of_the_process_needs_no_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "me:hunter2@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(TransientError, match="Unable to connect to proxy") as caught:
        RegistryTransport(SchemaRegistryOptions.parse("https://registry.test")).send("GET", "/subjects", None)
    assert "hunter2" not in str(caught.value)


SECRET = {"url": "https://a, https://b/path/", "username": "me", "password": "hunter2", "headers": {"X-Key": "hunter3"}}


@pytest.mark.parametrize("given", [SECRET, json.dumps(SECRET)])
def test_options_hold_their_secrets_back(given: Any) -> None:
    options = SchemaRegistryOptions.parse(given)
    assert options.url == ("https://a", "https://b/path")
    assert "hunter" not in f"{options!r} {options}"
    again = pickle.loads(pickle.dumps(options))
    assert (again, hash(again)) == (options, hash(options))
    assert SchemaRegistryOptions.parse(options) is options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ftp://x", "an http or https URL"),
        ("https://me:hunter2@x", "must contain no credentials"),
        ({"url": "https://x", "pasword": "hunter2"}, "did you mean password"),
        ({"url": "https://x", "username": "me"}, "username and password must be given together"),
        ({"url": "https://x", "username": "m", "password": "hunter2", "bearer_token": "hunter2"}, "only one of"),
        ({"url": "http://x", "bearer_token": "hunter2"}, "must be https"),
        ({"url": "https://x", "client_key": "k.pem"}, "client_key requires client_certificate"),
        ({"url": "https://x", "proxy": "socks5://me:hunter2@p"}, "proxy of schema_registry: must be an http"),
        ({"url": ["https://me:hunter2@x"]}, "must contain no credentials"),
        ('{"url": "hunter2', "not a JSON object"),
        (17, "list of names"),
    ],
)
def test_wrong_options_are_named_without_secrets(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        SchemaRegistryOptions.parse(given)
    assert "hunter2" not in str(caught.value)
