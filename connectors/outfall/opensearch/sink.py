"""`OpenSearchSink`: rows as documents of OpenSearch or Elasticsearch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from outfall.async_sink import ErrorAction, RefusedEntry, RequestOutcome, first_of
from outfall.async_sink.retrying import outfall_errors
from outfall.capabilities import Guarantee, TargetContext
from outfall.errors import ConfigurationError, TargetError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema
from outfall.formats.jsonl import JsonlEncoder
from outfall.opensearch.bulk import (
    DELETED_FIELD,
    FIELDS,
    VERSION_FIELD,
    ItemKind,
    Place,
    action,
    kind_of,
    reason_of,
    stored_version,
    tombstone,
    with_version,
)
from outfall.opensearch.client import (
    PASSING,
    ClusterResponse,
    OpenSearchAccess,
    OpenSearchClient,
    OpenSearchRecords,
    check,
)
from outfall.opensearch.options import OpenSearchOptions, OpenSearchSettings
from outfall.options import make_options, names_arguments
from outfall.versioned import Answer, KeyedRow, VersionedPartition, VersionedSink
from outfall.versioned.draws import GAP
from outfall.versioned.rows import without
from outfall.wrappers import WithDeadLetters

_JSON = FormatOptions(format="jsonl")
_LONGEST_ID = 512


class OpenSearchSink(WithDeadLetters):
    """Upserts and deletes rows as documents of OpenSearch or Elasticsearch, by id.

    Item type: rows (dicts or Arrow batches). A document replaces the whole document with its id.

    What must exist: the cluster; the index, or permission to create it; and permission for the index `outfall-records`.

    Unit of parallelism: each Spark task, with up to `max_in_flight_requests` bulk requests.

    Guarantee: effectively once: the final state is that of one run. At least once with `versions=False`, with
    `deletes="remove"`, and for data streams.

    Args:
        url: the cluster. See `OpenSearchOptions` for it and for the other arguments.
        dead_letter: a sink for rejected rows; see `outfall.wrappers.DeadLetteringSink`. Python API only.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected rows.
    """

    @names_arguments
    def __init__(self, url: str, *, dead_letter: Any = None, **settings: Unpack[OpenSearchSettings]) -> None:
        made = make_options(OpenSearchOptions, {"url": url} | settings)
        if made.data_stream:
            made = made.model_copy(update={"versions": False})
        super().__init__(OpenSearchRequestSink(made), dead_letter)


class OpenSearchRequestSink(VersionedSink):
    """Creates the partitions of an `OpenSearchSink`."""

    shown_as = "OpenSearchSink"

    def __repr__(self) -> str:
        return f"OpenSearchSink({self.options.url!r}, {self.options.index or self.options.index_column!r})"

    def kind(self) -> str:
        return "opensearch"

    def target(self) -> str:
        where = self.options.index or f"by {self.options.index_column}"
        return f"opensearch:{urlsplit(self.options.url).netloc}/{where}"

    def host(self) -> str:
        return str(self.options.url)

    def guarantee(self) -> Guarantee:
        kept = self.options.deletes == "tombstone"
        return super().guarantee() if kept else Guarantee.AT_LEAST_ONCE

    def requires(self) -> Sequence[str]:
        if self.guarantee() is Guarantee.AT_LEAST_ONCE:
            return ()
        more = ["a row of one key always has the same index"] if self.options.index_column else []
        more += ["the routing of a row depends on its key"] if self.options.routing_column else []
        # Tombstones are documents, and have no retention of their own.
        return (*super().requires()[:2], "tombstones are kept until no older task or driver can write", *more)

    def key_columns(self) -> Sequence[str]:
        return list(self.options.key_columns)

    def access(self) -> OpenSearchAccess:
        """Return how to reach the cluster."""
        options = self.options
        return OpenSearchAccess(
            options.url, options.username, options.password, options.api_key, options.aws_region, options.aws_service,
            options.ca_bundle, options.gzip, options.connect_timeout.total_seconds(),
            options.read_timeout.total_seconds(), options.max_in_flight_requests,
        )  # fmt: skip

    def records(self) -> OpenSearchRecords:
        return OpenSearchRecords(self.access())

    def check_schema(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        options: OpenSearchOptions = self.options
        for option in ("index_column", "routing_column"):
            column = getattr(options, option)
            if column is not None and (column not in schema.names or not pa.types.is_string(schema.field(column).type)):
                raise ConfigurationError(
                    f"{option} requires a string column {column!r}, and the rows have {', '.join(schema.names)}",
                    do=f"correct {option}, or cast the column",
                )
        for name in (VERSION_FIELD, DELETED_FIELD):
            if name in schema.names:
                raise ConfigurationError(f"the rows have a column {name!r}, which has another use", do="rename it")
        check_schema(_JSON, schema)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        if context.starting:
            self._check_index(self.access().client())
        return super().check_target(context)

    def open_target(self, context: TargetContext[Any]) -> None:
        super().open_target(context)
        if self.options.versions and self.options.index is not None:
            self._map_fields(self.access().client())

    def check_connection(self) -> Sequence[str]:
        client = self.access().client()
        found = check(client.send("GET", "/"), f"the request to {self.options.url}").body
        said = found.get("version", {}) if isinstance(found, dict) else {}
        self._check_index(client)
        name = said.get("distribution", "elasticsearch")
        return [f"{name} {said.get('number', 'of an unknown release')} answers", "writing was not tested"]

    def open(self) -> OpenSearchPartition:
        return OpenSearchPartition(self)

    def _check_index(self, client: OpenSearchClient) -> None:
        """Raise `TargetError` if the index exists and is closed for writes. A missing one may be created by writing."""
        index = self.options.index
        if index is None:
            return
        response = client.send("GET", f"/{quote(index)}/_settings?flat_settings=true")
        if response.status == 404:
            return
        settings = check(response, f"reading the settings of the index {index}").body
        for name, found in settings.items():
            blocks = [each for each, value in found["settings"].items() if "index.blocks." in each and value == "true"]
            closed = [each for each in blocks if each.rpartition(".")[2] in ("write", "read_only")]
            if closed:
                raise TargetError(
                    f"the index {name} takes no documents",
                    why=f"{closed[0]} is set",
                    do="remove the block, or write to another index",
                )

    def _map_fields(self, client: OpenSearchClient) -> None:
        """Map the fields of the versions, which costs nothing in queries, and lets a strict mapping accept them."""
        path = f"/{quote(self.options.index)}/_mapping"
        response = client.send("PUT", path, json.dumps(FIELDS).encode())
        if response.status == 404:
            body = json.dumps({"mappings": FIELDS}).encode()
            response = client.send("PUT", f"/{quote(self.options.index)}", body)
            if response.status == 400:  # another driver was faster
                response = client.send("PUT", path, json.dumps(FIELDS).encode())
        check(response, f"mapping the fields {VERSION_FIELD} and {DELETED_FIELD} of {self.options.index}")


class OpenSearchPartition(VersionedPartition):
    """Writes rows in bulk requests. A conflict is read back, and settled by what is stored."""

    sink: OpenSearchRequestSink

    classify = staticmethod(first_of(outfall_errors, otherwise=ErrorAction.FATAL))

    def __init__(self, sink: OpenSearchRequestSink) -> None:
        super().__init__(sink)
        self._client = sink.access().client()
        pipeline = sink.options.pipeline
        self._path = "/_bulk" if pipeline is None else f"/_bulk?pipeline={quote(pipeline, safe='')}"

    def writes(self, batch: pa.RecordBatch) -> Sequence[tuple[Any, Any, int]]:
        options: OpenSearchOptions = self.options
        places = self._places(batch)
        stored = without(batch, options.index_column)
        documents = bytes(JsonlEncoder(_JSON, stored.schema).encode(stored)).split(b"\n")[:-1]
        return [
            (place, document, len(document) + len(place.index) + len(place.id or "") + _OVERHEAD)
            for place, document in zip(places, documents, strict=True)
        ]

    def send(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        response = self._bulk([self._first(entry) for entry in entries])
        if response.status >= 300:
            return _failed(entries, response)
        outcome = _Outcome()
        conflicts = []
        for entry, item in zip(entries, _items(response), strict=True):
            if kind_of(item) is ItemKind.CONFLICT and self.version is not None:
                conflicts.append(entry)
            else:
                outcome.add(entry, item, Answer.WRITTEN)
        if conflicts:
            self._settle_conflicts(conflicts, outcome)
        error = self.settle([entry for entry, _ in outcome.answers], [answer for _, answer in outcome.answers])
        return RequestOutcome(error=error) if error is not None else outcome.result()

    def _settle_conflicts(self, entries: Sequence[KeyedRow], outcome: _Outcome) -> None:
        """Read what is stored, and replace rows of this version whose rank is lower, if they are still stored."""
        docs = [entry.key.meta() for entry in entries]
        for doc in docs:
            doc |= {"_source": [VERSION_FIELD]}
        response = self._client.send("POST", "/_mget", json.dumps({"docs": docs}).encode())
        if response.status >= 300:
            outcome.retry += [(entry, response.reason()) for entry in entries]
            return
        lower: list[tuple[KeyedRow, bytes]] = []
        for entry, found in zip(entries, response.body["docs"], strict=True):
            answer = self._compared(entry, found)
            if answer is None:
                outcome.retry.append((entry, "the document has changed in between"))
            elif answer is Answer.REPLACED:
                lower.append((entry, self._second(entry, found)))
            else:
                outcome.answers.append((entry, answer))
        if not lower:
            return
        response = self._bulk([lines for _, lines in lower])
        if response.status >= 300:
            outcome.retry += [(entry, response.reason()) for entry, _ in lower]
            return
        for (entry, _), item in zip(lower, _items(response), strict=True):
            outcome.add(entry, item, Answer.REPLACED)

    def _compared(self, entry: KeyedRow, found: dict[str, Any]) -> Answer | None:
        """Return what a write is, compared with what is stored; `None` if it must be sent again."""
        version = self.version
        if version is None:
            return None
        if not found.get("found"):
            # A removed document conflicts as long as the server knows its version, which is lost then.
            return Answer.SAME if entry.body is None else Answer.STALE
        theirs, number = (found.get("_source") or {}).get(VERSION_FIELD), found["_version"]
        if number < version.number:
            return None
        token, _, rank = str(theirs).partition(" ")
        if number >= version.number + GAP or token != version.token:
            return Answer.STALE
        if theirs == stored_version(version, entry.rank):
            return Answer.SAME
        return Answer.OUTRANKED if rank > entry.rank.hex() else Answer.REPLACED

    def _bulk(self, actions: Sequence[bytes]) -> ClusterResponse:
        return self._client.send("POST", self._path, b"".join(actions), kind="application/x-ndjson")

    def _first(self, entry: KeyedRow) -> bytes:
        version: dict[str, Any] = {}
        if self.version is not None:
            version = {"version": self.version.number, "version_type": "external"}
        return self._action(entry, version)

    def _second(self, entry: KeyedRow, found: dict[str, Any]) -> bytes:
        return self._action(entry, {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]})

    def _action(self, entry: KeyedRow, version: dict[str, Any]) -> bytes:
        if self.version is None:
            name = "create" if self.options.data_stream else "index"
            return action("delete" if entry.body is None else name, entry.key, entry.body, version)
        if entry.body is not None:
            return action("index", entry.key, with_version(entry.body, self.version, entry.rank), version)
        if self.options.deletes == "remove":
            return action("delete", entry.key, None, version)
        return action("index", entry.key, tombstone(self.version, entry.rank), version)

    def _places(self, batch: pa.RecordBatch) -> list[Place]:
        options: OpenSearchOptions = self.options
        rows = range(batch.num_rows)
        ids = _ids([batch.column(name).cast(pa.string()) for name in options.key_columns]) or [None for _ in rows]
        indices = _column(batch, options.index_column)
        routings = _column(batch, options.routing_column)
        for found in ids:
            if found is not None and not 0 < len(found.encode()) <= _LONGEST_ID:
                raise ValueRefusedError(
                    f"the id of a row has {len(found.encode())} bytes, and 1 to {_LONGEST_ID} are possible",
                    do="use other key_columns, or remove such rows",
                )
        if options.index_column is not None and not all(indices):
            raise ValueRefusedError("the index of a row is NULL or empty", do="remove such rows, or set index")
        return [Place(options.index or str(indices[row]), ids[row], routings[row]) for row in rows]


class _Outcome:
    """What becomes of the rows of a request."""

    def __init__(self) -> None:
        """Start empty."""
        self.answers: list[tuple[KeyedRow, Answer]] = []
        self.retry: list[tuple[KeyedRow, str]] = []
        self.dead: list[RefusedEntry[KeyedRow]] = []
        self.fatal: str | None = None

    def add(self, entry: KeyedRow, item: dict[str, Any], written: Answer) -> None:
        """Add a row by the item of the response."""
        kind = kind_of(item)
        if kind is ItemKind.DONE:
            self.answers.append((entry, written))
        elif kind in (ItemKind.PASSING, ItemKind.CONFLICT):
            self.retry.append((entry, reason_of(item)))
        elif kind is ItemKind.AT_FAULT:
            self.dead.append(RefusedEntry(entry, reason_of(item), str((item.get("error") or {}).get("type"))))
        else:
            self.fatal = reason_of(item)

    def result(self) -> RequestOutcome[KeyedRow]:
        """Return it for the base."""
        if self.fatal is not None:
            error = TargetError(
                "the cluster rejected a document", why=self.fatal, do="create the index, or grant access"
            )
            return RequestOutcome(error=error)
        reason = self.retry[0][1] if self.retry else None
        return RequestOutcome(retry=[entry for entry, _ in self.retry], dead=self.dead, reason=reason)


_OVERHEAD = 200
"""Bytes of an action and the version."""


def _column(batch: pa.RecordBatch, name: str | None) -> list[str | None]:
    return [None] * batch.num_rows if name is None else batch.column(name).to_pylist()


def _ids(keys: Sequence[pa.Array]) -> list[str | None]:
    """Return the ids of rows with the columns of their key: two keys never have one id."""
    if len(keys) > 1:
        keys = [pc.replace_substring(pc.replace_substring(key, "%", "%25"), ":", "%3A") for key in keys]
    return [":".join(texts) for texts in zip(*(key.to_pylist() for key in keys), strict=True)]


def _items(response: ClusterResponse) -> list[dict[str, Any]]:
    return [next(iter(item.values())) for item in response.body["items"]]


def _failed(entries: Sequence[KeyedRow], response: ClusterResponse) -> RequestOutcome[KeyedRow]:
    """Return what a request comes to that the cluster rejected as a whole."""
    if response.status in PASSING:
        return RequestOutcome(
            retry=entries, reason=response.reason(), after=response.after, hold_host=response.after is not None
        )
    if response.status in (400, 413):
        return RequestOutcome(split=entries, reason=response.reason(), code=str(response.status))
    return RequestOutcome(
        error=TargetError(
            "the cluster rejected a bulk request", why=response.reason(), do="correct the credentials or the options"
        )
    )
