"""A model of Confluent's Schema Registry API over real sockets, that misbehaves by order.

It keeps subjects, versions, references and ids in memory. It checks the compatibility of Avro schemas with Apache's own
library, and accepts every version of JSON Schema and Protobuf. `tests/peers/registry` compares it, call by call, with
Apicurio Registry; what only Confluent's server does is named there.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import avro.errors
import avro.name
import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.integration.support.servers import free_port

CONTENT = "application/vnd.schemaregistry.v1+json"
KINDS = ("JSON", "PROTOBUF", "AVRO")
LEVELS = ("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE")

Answer = tuple[int, Any]


@dataclass(frozen=True)
class ModelSchema:
    """A schema with its references, each a name, a subject and a version. Equal schemas share an id."""

    text: str
    kind: str = "AVRO"
    references: tuple[tuple[str, str, int], ...] = ()

    def body(self) -> dict[str, Any]:
        """Return what the API says of it, which leaves out defaults."""
        found: dict[str, Any] = {"schema": self.text}
        if self.kind != "AVRO":
            found["schemaType"] = self.kind
        if self.references:
            found["references"] = [
                {"name": name, "subject": subject, "version": version} for name, subject, version in self.references
            ]
        return found


@dataclass
class _Fault:
    """A status that requests get instead of an answer, so many times."""

    status: int
    times: int
    path: str


class _RequestError(Exception):
    """A request whose answer is an error of the API."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.answer: Answer = (code // 100 if code > 999 else code, {"error_code": code, "message": message})


@dataclass
class ModelRegistry:
    """The server, its schemas and its faults. A test may change all of them while it runs."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    """Passwords by name: each request needs one of them, if there are any."""
    token: str | None = None
    """The bearer token that each request needs; `POST /oauth/token` gives it to the users."""
    port: int = field(default_factory=free_port)
    delay: float = 0
    """Seconds before each answer."""
    replaced: dict[int, str] = field(default_factory=dict)
    """By id: the schema that is answered instead of the registered one."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request that arrived."""
    schemas: dict[int, ModelSchema] = field(default_factory=dict)
    versions: dict[str, dict[int, int]] = field(default_factory=dict)
    """By subject and version: the id."""
    deleted: set[tuple[str, int]] = field(default_factory=set)
    """Versions that are deleted, but not for ever."""
    levels: dict[str, str] = field(default_factory=dict)
    """Compatibility levels by subject; that of the name "" is the default of all."""

    def __post_init__(self) -> None:
        """Listen from `start` on."""
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen on the port, which stays the same for ever."""
        self._server = _Server(self)
        if self.tls:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections until `start`, and answer nothing more on those that are open."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @property
    def listens(self) -> bool:
        return self._server is not None

    def fail(self, status: int, *, times: int = 1_000_000, path: str = "") -> None:
        """Answer so many requests, whose path begins so, with a status; 0 times ends it."""
        self._faults = [fault for fault in self._faults if fault.path != path]
        self._faults.append(_Fault(status, times, path))

    def forget(self) -> None:
        """Lose all data, as a server that is started again on an empty disk: ids begin again."""
        with self._lock:
            for kept in (self.schemas, self.versions, self.deleted, self.levels):
                kept.clear()

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> int:
        """Register a schema without a request, and return its id."""
        with self._lock:
            status, answer = self._register(subject, ModelSchema(text, kind, tuple(references)))
        assert status == 200, answer
        return int(answer["id"])

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request: the status, and what becomes JSON."""
        url = urlsplit(target)
        with self._lock:
            self.requests.append((method, url.path))
            for fault in self._faults:
                if fault.times and url.path.startswith(fault.path):
                    fault.times -= 1
                    return fault.status, {"error_code": fault.status * 100 + 1, "message": "Error by order"}
            if url.path == "/oauth/token":
                return self._token(headers, body)
            if not self._authenticated(headers):
                return 401, {"error_code": 401, "message": "Unauthorized"}
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            try:
                return self._route(method, [unquote(piece) for piece in url.path.strip("/").split("/")], query, body)
            except _RequestError as refused:
                return refused.answer

    def _authenticated(self, headers: Mapping[str, str]) -> bool:
        kind, _, given = headers.get("Authorization", "").partition(" ")
        if self.token is not None:
            return kind == "Bearer" and given == self.token
        return not self.users or (kind == "Basic" and self._is_user(given))

    def _is_user(self, given: str) -> bool:
        name, _, password = base64.b64decode(given).decode().partition(":")
        return self.users.get(name) == password

    def _token(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """RFC 6749, 4.4: client credentials, in a header or in the form."""
        kind, _, given = headers.get("Authorization", "").partition(" ")
        form = {name: values[-1] for name, values in parse_qs(body.decode()).items()}
        if kind != "Basic":
            given = base64.b64encode(f"{form.get('client_id')}:{form.get('client_secret')}".encode()).decode()
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if not self._is_user(given):
            return 401, {"error": "invalid_client"}
        return 200, {"access_token": self.token, "token_type": "Bearer", "expires_in": 3600}

    def _route(self, method: str, path: list[str], query: dict[str, str], body: bytes) -> Answer:
        match method, path:
            case "GET", [""]:
                return 200, {}
            case "GET", ["schemas", "types"]:
                return 200, list(KINDS)
            case "GET", ["schemas", "ids", number, *rest]:
                return self._by_id(_whole(number), rest, query.get("format"))
            case "GET", ["subjects"]:
                return 200, sorted(name for name in self.versions if self._live(name) or query.get("deleted") == "true")
            case "GET", ["subjects", subject, "versions"]:
                return 200, self._live_or_refused(subject)
            case "GET", ["subjects", subject, "versions", version, *rest]:
                return self._version(subject, version, rest, query)
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, _given(body))
            case "POST", ["subjects", subject]:
                return self._lookup(subject, _given(body))
            case "DELETE", ["subjects", subject]:
                gone = self._live_or_refused(subject)
                self.deleted |= {(subject, each) for each in gone}
                return 200, gone
            case "DELETE", ["subjects", subject, "versions", version]:
                found = self._found(subject, version)
                self.deleted.add((subject, found))
                return 200, found
            case "POST", ["compatibility", "subjects", subject, "versions", version]:
                found = self._found(subject, version)
                return 200, {"is_compatible": not self._incompatible(subject, _given(body), [found])}
            case (("GET" | "PUT"), ["config", *subject]):
                return self._config(method, "".join(subject), body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _by_id(self, number: int, rest: list[str], form: str | None) -> Answer:
        if number not in self.schemas:
            raise _RequestError(40403, f"Schema {number} not found")
        used = [
            (subject, version)
            for subject, versions in self.versions.items()
            for version, each in versions.items()
            if each == number and (subject, version) not in self.deleted
        ]
        if rest == ["versions"]:
            return 200, [{"subject": subject, "version": version} for subject, version in used]
        if rest == ["subjects"]:
            return 200, [subject for subject, _ in used]
        return 200, self._body(number, form)

    def _serialized(self, number: int) -> bytes:
        """Return a Protobuf schema as clients without a compiler of their own ask for it: as a descriptor."""
        with TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "default.proto").write_text(self.schemas[number].text)
            waiting = list(self.schemas[number].references)
            while waiting:
                name, subject, version = waiting.pop()
                inner = self.schemas[self.versions[subject][version]]
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(inner.text)
                waiting += inner.references
            command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={root / 'set'}"]
            subprocess.run([*command, "default.proto"], check=True, cwd=root)
            return bytes(FileDescriptorSet.FromString((root / "set").read_bytes()).file[0].SerializeToString())

    def _body(self, number: int, form: str | None = None) -> dict[str, Any]:
        body = self.schemas[number].body()
        if form == "serialized" and self.schemas[number].kind == "PROTOBUF":
            return body | {"schema": base64.b64encode(self._serialized(number)).decode()}
        return body | {"schema": self.replaced.get(number, body["schema"])}

    def _live(self, subject: str) -> list[int]:
        return [version for version in self.versions.get(subject, ()) if (subject, version) not in self.deleted]

    def _live_or_refused(self, subject: str) -> list[int]:
        found = self._live(subject)
        if not found:
            raise _RequestError(40401, f"Subject '{subject}' not found.")
        return found

    def _found(self, subject: str, version: str, *, deleted: bool = False) -> int:
        live = self._live_or_refused(subject) if not deleted else list(self.versions.get(subject, ()))
        if version in ("latest", "-1"):
            return live[-1]
        if not version.isdigit() or not int(version):
            raise _RequestError(
                42202,
                f"The specified version '{version}' is not a valid version id. Allowed values are between"
                ' [1, 2^31-1] and the string "latest"',
            )
        if int(version) not in live:
            raise _RequestError(40402, f"Version {version} not found.")
        return int(version)

    def _version(self, subject: str, version: str, rest: list[str], query: Mapping[str, str]) -> Answer:
        found = self._found(subject, version, deleted=query.get("deleted") == "true")
        number = self.versions[subject][found]
        body = self._body(number, query.get("format"))
        return 200, body["schema"] if rest == ["schema"] else {
            "subject": subject, "version": found, "id": number, **body
        }  # fmt: skip

    def _register(self, subject: str, schema: ModelSchema) -> Answer:
        self._check(schema)
        for version in self._live(subject):
            if self._same(self.schemas[self.versions[subject][version]], schema):
                return 200, {"id": self.versions[subject][version]}
        level = self.levels.get(subject, self.levels.get("", "BACKWARD"))
        live = self._live(subject)
        if wrong := self._incompatible(subject, schema, live if level.endswith("TRANSITIVE") else live[-1:]):
            raise _RequestError(
                409,
                "Schema being registered is incompatible with an earlier schema for subject"
                f' "{subject}", details: [{"; ".join(wrong)}]',
            )
        known = [number for number, each in self.schemas.items() if self._same(each, schema)]
        number = known[0] if known else max(self.schemas, default=0) + 1
        self.schemas.setdefault(number, schema)
        versions = self.versions.setdefault(subject, {})
        versions[max(versions, default=0) + 1] = number
        return 200, {"id": number}

    def _lookup(self, subject: str, schema: ModelSchema) -> Answer:
        for version in self._live_or_refused(subject):
            number = self.versions[subject][version]
            if self._same(self.schemas[number], schema):
                return 200, {"subject": subject, "version": version, "id": number, **self._body(number)}
        raise _RequestError(40403, "Schema not found")

    def _config(self, method: str, subject: str, body: bytes) -> Answer:
        if method == "GET":
            if subject and subject not in self.levels:
                raise _RequestError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")
            return 200, {"compatibilityLevel": self.levels.get(subject, "BACKWARD")}
        level = json.loads(body).get("compatibility")
        if level not in LEVELS:
            raise _RequestError(42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
        self.levels[subject] = level
        return 200, {"compatibility": level, "normalize": False}

    def _same(self, one: ModelSchema, other: ModelSchema) -> bool:
        """Say whether two schemas are one: white space does not count."""
        if (one.kind, one.references) != (other.kind, other.references):
            return False
        return one.text == other.text or (one.kind != "PROTOBUF" and json.loads(one.text) == json.loads(other.text))

    def _check(self, schema: ModelSchema) -> None:
        if schema.kind not in KINDS:
            raise _RequestError(422, f"Invalid schema type {schema.kind}")
        try:
            if schema.kind == "AVRO":
                self._avro(schema)
            elif schema.kind == "JSON":
                json.loads(schema.text)
        except (avro.errors.AvroException, ValueError, KeyError) as error:
            raise _RequestError(42201, f"Either the input schema or one its references is invalid: {error}") from error

    def _avro(self, schema: ModelSchema, names: avro.name.Names | None = None) -> avro.schema.Schema:
        """Parse a schema after those that it refers to."""
        names = names or avro.name.Names()
        for _, subject, version in schema.references:
            self._avro(self.schemas[self.versions[subject][version]], names)
        return avro.schema.make_avsc_object(json.loads(schema.text), names)

    def _incompatible(self, subject: str, schema: ModelSchema, versions: Sequence[int]) -> list[str]:
        """Return why readers of one schema cannot read what is written by another."""
        level = self.levels.get(subject, self.levels.get("", "BACKWARD"))
        checker: Any = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        wrong: list[str] = []
        for version in versions:
            earlier = self.schemas[self.versions[subject][version]]
            if level == "NONE" or schema.kind != "AVRO" or earlier.kind != "AVRO":
                continue
            old, new = self._avro(earlier), self._avro(schema)
            pairs = [(new, old)] if not level.startswith("FORWARD") else []
            pairs += [(old, new)] if not level.startswith("BACKWARD") else []
            for reader, writer in pairs:
                result = checker.get_compatibility(reader, writer)
                if result.compatibility is not SchemaCompatibilityType.compatible:
                    wrong += sorted(result.messages)
        return wrong


def _whole(text: str) -> int:
    if not text.isdigit():
        raise _RequestError(404, "HTTP 404 Not Found")
    return int(text)


def _given(body: bytes) -> ModelSchema:
    given = json.loads(body)
    if not given.get("schema"):
        raise _RequestError(42201, "Empty schema")
    references = tuple((each["name"], each["subject"], each["version"]) for each in given.get("references") or ())
    return ModelSchema(given["schema"], given.get("schemaType") or "AVRO", references)


@contextmanager
def model_registry(**settings: Any) -> Iterator[ModelRegistry]:
    """Run a registry of its own, with fields of `ModelRegistry`."""
    registry = ModelRegistry(**settings)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, registry: ModelRegistry) -> None:
        self.registry = registry
        super().__init__(("127.0.0.1", registry.port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _answer(self) -> None:
        registry = self.server.registry
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, answer = registry.answer(self.command, self.path, dict(self.headers.items()), body)
        until = time.monotonic() + registry.delay
        while time.monotonic() < until and registry.listens:
            time.sleep(0.01)
        if not registry.listens:
            self.close_connection = True
            return
        # The text of a schema alone is no JSON string.
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
