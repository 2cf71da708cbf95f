"""The client of a schema registry with Confluent's API: retries until a deadline, and a bounded cache by id.

Confluent's own client is not used: it keeps schemas by id without bound, reads responses without bound, and requests
OAuth tokens without the proxy and the authorities of the registry.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.first_contact import fails_at_once, patience
from outfall.process_clients import ProcessClients
from outfall.retry_log import RetryLog
from outfall.retry_loop import patiently
from outfall.schema_registry.options import SchemaRegistryOptions
from outfall.schema_registry.schemas import Reference, RegisteredSchema, Schema, SchemaKind, WholeSchema
from outfall.schema_registry.transport import RegistryResponse, RegistryTransport

_MOST_SCHEMAS = 1000
_MOST_REFERENCES = 1000
_MOST_RECENT = 10_000
_ABSENT_SECONDS = 30.0
"""How long an id is not asked for again that the registry did not have: messages of others may have thousands."""
_LATE_PAUSES = (0.2, 0.8)
"""Seconds before an id is asked for again that is new here: servers of a registry learn of it one after another."""
_MOST_LATE = 100
"""Ids that may come late together. More are messages of others."""
_KINDS: tuple[SchemaKind, ...] = ("AVRO", "JSON", "PROTOBUF")

_log = logging.getLogger(__name__)
_retries = RetryLog(_log)


class NotRegisteredError(TargetError):
    """The registry does not have the subject, the version or the id."""


class SchemaRefusedError(ConfigurationError):
    """The registry does not accept a schema: it is invalid, or incompatible with the subject's earlier ones."""


class ReferencesError(TargetError):
    """What a schema refers to, directly or indirectly, makes no whole."""


class _Recent:
    """What a registry has said lately, also that it does not have something. Bounded; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    def knows(self, key: Hashable) -> bool:
        """Whether something was said of a key, however long ago."""
        with self._lock:
            return key in self._said

    def get(self, key: Hashable, seconds: float, ask: Callable[[], Any], *, only_absent: bool = False) -> Any:
        """Return what was said of a key in the last seconds, or ask again. Raises `NotRegisteredError` as it was.

        With `only_absent` nothing else is kept.
        """
        with self._lock:
            found = self._said.get(key)
        if found is None or time.monotonic() - found[0] >= seconds:
            try:
                found = time.monotonic(), ask()
                if only_absent:
                    return found[1]
            except NotRegisteredError as error:
                found = time.monotonic(), error
            with self._lock:
                self._said[key] = found
                self._said.move_to_end(key)
                while len(self._said) > _MOST_RECENT:
                    self._said.popitem(last=False)
        said = found[1]
        if isinstance(said, NotRegisteredError):
            raise NotRegisteredError(said.what, why=said.why, do=said.do)
        return said


class SchemaRegistry:
    """One registry. Threads share it.

    Every call is repeated after outages until `retry_deadline`, and then raises `TransientError`. Every call raises
    `ConfigurationError` if the registry does not accept the credentials or is not trusted, and `TargetError` if what it
    answers is not a registry's.
    """

    def __init__(self, options: SchemaRegistryOptions, transport: RegistryTransport | None = None) -> None:
        """Read the secrets, and connect to nothing yet. Raises `ConfigurationError` if a secret cannot be read."""
        self._transport = transport or RegistryTransport(options)
        self._deadline = options.retry_deadline.total_seconds()
        self._lock = threading.Lock()
        self._by_id: OrderedDict[int, Schema] = OrderedDict()
        self._recent = _Recent()
        self.requests = 0
        """Requests so far, of which the last ones may have been repeated."""

    @property
    def where(self) -> str:
        """The registry's addresses, without secrets."""
        return self._transport.where

    def look_up(self, ids: Iterable[int]) -> None:
        """Ask for the schemas of ids, and of those that were never asked for twice again within a second.

        A producer may have been given an id that the server does not have yet that is asked here. To be called before
        `schema` where a message is lost without its schema.
        """
        with self._lock:
            new = [each for each in ids if each not in self._by_id]
        new = [each for each in new if not self._recent.knows(each)]
        for pause in (0.0, *_LATE_PAUSES):
            if not new or (pause and len(new) > _MOST_LATE):
                return
            time.sleep(pause)
            new = [each for each in new if not self._has(each)]

    def _has(self, schema_id: int) -> bool:
        try:
            self.schema(schema_id, absent_for=0.0)
        except NotRegisteredError:
            return False
        return True

    def schema(self, schema_id: int, *, absent_for: float = _ABSENT_SECONDS) -> RegisteredSchema:
        """Return the schema of an id, from the cache if this process has seen it. Raises `NotRegisteredError`.

        An id that the registry did not have is asked for again after `absent_for` seconds.
        """
        with self._lock:
            known = self._by_id.get(schema_id)
            if known is not None:
                self._by_id.move_to_end(schema_id)
                return RegisteredSchema(schema_id, known)
        what = f"the schema with the id {schema_id}"

        def ask() -> Schema:
            found = self._ask("GET", f"/schemas/ids/{schema_id}", what)
            return self._known(schema_id, self._schema_in(found, what))

        return RegisteredSchema(schema_id, self._recent.get(schema_id, absent_for, ask, only_absent=True))

    def version(self, subject: str, version: int | None = None, *, within: float = 0.0) -> RegisteredSchema:
        """Return a version of a subject, `None` for the latest one at this moment. Raises `NotRegisteredError`.

        `within`: or in the last seconds, if this process has asked since. Raises `TargetError` if the registry has
        another schema for its id.
        """
        return self._recent.get(  # type: ignore[no-any-return]
            (subject, version), within, lambda: self._version(subject, version)
        )

    def _version(self, subject: str, version: int | None) -> RegisteredSchema:
        name = "latest" if version is None else str(version)
        what = f"the version {version} of the subject {subject}" if version else f"the subject {subject}"
        found = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{name}", what)
        return self._confirmed(found, self._schema_in(found, what), subject, what)

    def register(self, subject: str, schema: Schema, *, within: float = 0.0) -> RegisteredSchema:
        """Return a schema of a subject, registered if the subject does not have it yet. `within` as of `version`.

        Raises `SchemaRefusedError` with the registry's words.
        """
        return self._recent.get(  # type: ignore[no-any-return]
            (subject, schema), within, lambda: self._register(subject, schema)
        )

    def _register(self, subject: str, schema: Schema) -> RegisteredSchema:
        path, what = f"/subjects/{quote(subject, safe='')}", f"a schema for the subject {subject}"
        body: dict[str, Any] = {"schema": schema.text}
        if schema.kind != "AVRO":
            body["schemaType"] = schema.kind
        if schema.references:
            body["references"] = [
                {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
            ]
        try:
            # Asked first, since it needs no permission to write.
            found = self._ask("POST", path, what, body)
        except NotRegisteredError:
            found = self._ask("POST", f"{path}/versions", what, body)
        return self._confirmed(found, schema, subject, what)

    def referenced(self, schema: Schema, *, within: float = 0.0) -> Mapping[str, Schema]:
        """Return all schemas that a schema refers to, also indirectly, by name; each after those that it refers to.

        `within` as of `version`. Raises `NotRegisteredError` if one does not exist, and `ReferencesError` if they are
        too many, or two of them have one name.
        """
        found: dict[str, tuple[Reference, Schema]] = {}
        self._add_referenced(schema, found, (), within)
        return {name: inner for name, (_, inner) in found.items()}

    def whole(self, schema: Schema, *, within: float = 0.0) -> WholeSchema:
        """Return a schema with all that it refers to. Raises as `referenced`."""
        return WholeSchema(schema, tuple(self.referenced(schema, within=within).items()))

    def subjects(self) -> int:
        """Return the number of subjects that this user may see, to check that the registry responds."""
        found = self._ask("GET", "/subjects", "the list of subjects")
        if not isinstance(found, list):
            raise self._unreadable("the list of subjects")
        return len(found)

    def _add_referenced(
        self,
        schema: Schema,
        found: dict[str, tuple[Reference, Schema]],
        above: tuple[Reference, ...],
        within: float,
    ) -> None:
        for one in schema.references:
            if one in above or len(found) >= _MOST_REFERENCES:
                raise ReferencesError(
                    f"the schema {one.subject} version {one.version} of {self.where} refers to itself, or to more than"
                    f" {_MOST_REFERENCES} others",
                    do="correct the references of the schema",
                )
            known = found.get(one.name)
            if known is not None and known[0] == one:
                continue
            inner = self.version(one.subject, one.version, within=within).schema
            if known is None:
                self._add_referenced(inner, found, (*above, one), within)
                found[one.name] = one, inner
            elif known[1] != inner:
                other = known[0]
                raise ReferencesError(
                    f"a schema of {self.where} refers to two others by the name {one.name!r}",
                    why=f"they are {other.subject} version {other.version} and {one.subject} version {one.version}",
                    do="register the schemas that refer to the older one again, with the newer one as reference",
                )

    def _confirmed(self, found: Any, schema: Schema, subject: str, what: str) -> RegisteredSchema:
        """Check that the registry has this schema under the id that it names: messages carry nothing else of it."""
        schema_id, version = found.get("id") if isinstance(found, dict) else None, None
        if not isinstance(schema_id, int) or not 0 <= schema_id < 1 << 32:
            raise self._unreadable(what)
        if isinstance(found.get("version"), int):
            version = found["version"]
        self.look_up([schema_id])
        by_id = self.schema(schema_id).schema
        if not self._same(by_id, schema):
            raise TargetError(
                f"{self.where} has two schemas with the id {schema_id}",
                why=f"it is that of {what}, and also of another schema, with which readers would decode its messages",
                do="check that all URLs lead to one registry, and that it was not replaced by another one; then start"
                " the query again",
            )
        return RegisteredSchema(schema_id, by_id, subject, version)

    def _same(self, one: Schema, other: Schema) -> bool:
        """Whether two schemas are equal except for white space and the order of names, which registries may change."""
        if one == other or (one.text == other.text and one.kind == other.kind):
            return True
        if one.kind != other.kind:
            return False
        if one.kind == "PROTOBUF":
            # Imported here: few registries have Protobuf. Confluent's returns a text of its own.
            from outfall.schema_registry.protobuf_schema import compiled

            return compiled(self.whole(one)).same(compiled(self.whole(other)))
        try:
            return bool(json.loads(one.text) == json.loads(other.text))
        except ValueError:
            return False

    def _known(self, schema_id: int, schema: Schema) -> Schema:
        with self._lock:
            self._by_id[schema_id] = schema
            while len(self._by_id) > _MOST_SCHEMAS:
                self._by_id.popitem(last=False)
        return schema

    def _schema_in(self, found: Any, what: str) -> Schema:
        kind = found.get("schemaType", "AVRO") if isinstance(found, dict) else None
        if kind not in _KINDS or not isinstance(found.get("schema"), str):
            raise self._unreadable(what)
        references = found.get("references") or []
        try:
            pairs = tuple(Reference(str(one["name"]), str(one["subject"]), int(one["version"])) for one in references)
        except (TypeError, KeyError, ValueError):
            raise self._unreadable(what) from None
        return Schema(found["schema"], kind, pairs)

    def _unreadable(self, what: str) -> TargetError:
        return TargetError(
            f"{self.where} did not return {what}",
            why="the response has another form than that of a schema registry",
            do="check that the url leads to a schema registry with Confluent's API, with its path, such as"
            " /apis/ccompat/v7",
        )

    def _ask(self, method: str, path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request until the registry responds, and return what it does."""
        data = None if body is None else json.dumps(body).encode()

        def attempt() -> RegistryResponse:
            self.requests += 1
            _log.debug("requesting %s from %s (request %d of this process)", what, self.where, self.requests)
            return self._transport.send(method, path, data)

        try:
            response = patiently(_retries, self.where, f"requesting {what}", attempt, self._deadline)
        except TransientError as error:
            limit = patience(self._deadline)
            waited = f" for {limit:g} s" + (" (retry_deadline)" if limit == self._deadline else "")
            raise TransientError.because_of(
                error, f"the schema registry did not return {what}{'' if fails_at_once(error) else waited}"
            ) from error
        if response.status < 300:
            return response.content
        raise self._failure(response, what)

    def _failure(self, response: RegistryResponse, what: str) -> OutfallError:
        where, why = self.where, response.reason
        if response.status in (401, 403):
            return ConfigurationError(
                f"{where} denies access to {what}",
                why=why,
                do="correct the credentials in schema_registry, or permit this user to use the subject",
            )
        # 404 is also the code for a path that the server does not know: nothing is said of the schema then.
        if response.status == 404 and response.code not in (None, 404):
            return NotRegisteredError(
                f"{where} does not have {what}", why=why, do="register it, or correct the subject, version or id"
            )
        if response.status in (409, 422):
            return SchemaRefusedError(
                f"{where} refuses {what}",
                why=why,
                do="change the columns, the name of the record (value_record, key_record), or the subject's"
                " compatibility; or leave out register_schemas, to write with the registered schema",
            )
        return TargetError(
            f"{where} did not return {what}",
            why=why,
            do="check that the url leads to a schema registry with Confluent's API, with its path, such as"
            " /apis/ccompat/v7",
        )


@dataclass(frozen=True)
class _Access:
    """How a process reaches a registry."""

    options: SchemaRegistryOptions

    def make(self) -> SchemaRegistry:
        return SchemaRegistry(self.options)


_clients = ProcessClients[_Access]()


def registry_of(options: SchemaRegistryOptions) -> SchemaRegistry:
    """Return this process's client of a registry, which its threads and tasks share. It connects when it is used.

    Raises `ConfigurationError` if a certificate cannot be read on this host.
    """
    return _clients.get(_Access(options))  # type: ignore[no-any-return]


def check_registry(options: SchemaRegistryOptions) -> str:
    """Ask the registry, and return what it says, for `outfall doctor`."""
    registry = registry_of(options)
    return f"the schema registry {registry.where} responds, with {registry.subjects()} subjects"
