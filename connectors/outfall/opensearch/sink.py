"""`OpenSearchSink`: rows as documents of OpenSearch or Elasticsearch."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Unpack, cast
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from outfall.async_sink import ErrorAction, RefusedEntry, RequestOutcome, first_of
from outfall.async_sink.responses import unreadable
from outfall.async_sink.retrying import outfall_errors
from outfall.capabilities import Guarantee, RowIdentity, TargetContext
from outfall.errors import ConfigurationError, TargetError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema
from outfall.opensearch.bulk import (
    CONFLICT,
    DELETED_FIELD,
    FIELDS,
    VERSION_FIELD,
    action_on,
    action_on_read,
    actions,
    if_unchanged,
    place_of,
    reason_of,
)
from outfall.opensearch.client import (
    ClusterResponse,
    OpenSearchClient,
    OpenSearchConnection,
    OpenSearchRecords,
    check,
    listed,
)
from outfall.opensearch.names import IndexNames, indices_of, is_field, misleading, refusal
from outfall.opensearch.options import OpenSearchOptions, OpenSearchSettings
from outfall.options import make_options, names_arguments
from outfall.values import require_columns, spark_type
from outfall.versioned import Answer, KeyedBatch, KeyedRow, Outcomes, Version, VersionedPartition, VersionedSink
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

    def without_address(self, target: str) -> str:
        return target.partition("/")[2]

    def host(self) -> str:
        return str(self.options.url)

    def replaces_rows(self) -> bool:
        return not self.options.data_stream

    def requires(self) -> Sequence[str]:
        if self.guarantee() is Guarantee.AT_LEAST_ONCE:
            return ()
        more = ["a row of one key always has the same index"] if self.options.index_column else []
        more += ["the routing of a row depends on its key"] if self.options.routing_column else []
        # Tombstones are documents, and have no retention of their own.
        return (*super().requires()[:2], "tombstones are kept until no older task or driver can write", *more)

    def key_columns(self) -> Sequence[str]:
        return list(self.options.key_columns)

    def row_identity(self) -> RowIdentity | None:
        return None if self.options.data_stream else super().row_identity()

    def place_columns(self) -> Sequence[str]:
        more = (self.options.index_column, self.options.routing_column)
        return [*self.key_columns(), *(name for name in more if name is not None)]

    def access(self) -> OpenSearchConnection:
        """Return how to reach the cluster."""
        return OpenSearchConnection.of(self.options)

    def records(self) -> OpenSearchRecords:
        return OpenSearchRecords(self.access())

    def check_schema(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        options: OpenSearchOptions = self.options
        for option in ("index_column", "routing_column"):
            column = getattr(options, option)
            require_columns(schema.names, {option: column})
            if column is not None and not pa.types.is_string(kind := schema.field(column).type):
                raise ConfigurationError(
                    f"{option} is the column {column!r} of type {spark_type(kind)}",
                    do=f"cast it to string, or correct {option}",
                )
        for name in (VERSION_FIELD, DELETED_FIELD):
            if name in schema.names:
                raise ConfigurationError(f"the rows have a column {name!r}, which has another use", do="rename it")
        for name in schema.names:
            if name not in (options.index_column, options.delete_marker) and not is_field(name):
                raise ConfigurationError(
                    f"the rows have a column {name!r}, which no document may have as a field",
                    why="the server has a field of this name, or a part of the name between dots is empty",
                    do="rename it; the id and the index of documents come from key_columns and index_column",
                )
        check_schema(_JSON, schema)

    def check_server(self, context: TargetContext[Any]) -> None:
        # An alias may stand for another index in each epoch.
        self._check_index(self.access().client(), starting=context.starting)

    def open_target(self, context: TargetContext[Any]) -> None:
        super().open_target(context)
        if self.options.versions and self.options.index is not None:
            self.patiently("mapping the fields of the versions", lambda: self._map_fields(self.access().client()))

    def check_connection(self) -> Sequence[str]:
        client = self.access().client()
        found = check(client.send("GET", "/"), f"the request to {self.options.url}").body
        said = found.get("version", {}) if isinstance(found, dict) else {}
        self._check_index(client, starting=True)
        name = said.get("distribution", "elasticsearch")
        return [f"{name} {said.get('number', 'of an unknown release')} answers", "writing was not tested"]

    def open(self) -> OpenSearchPartition:
        return OpenSearchPartition(self)

    def _check_index(self, client: OpenSearchClient, *, starting: bool) -> None:
        """Raise `TargetError` if the index is no place for the rows. A missing one may be created by writing."""
        name, keyed = self.options.index, bool(self.options.key_columns)
        if name is None or not (starting or keyed):
            return
        found = indices_of(client, name)
        if keyed and (reason := misleading(name, list(found))):
            raise _misled(reason)
        for index, settings in found.items() if starting else ():
            blocks = [each for each, value in settings.items() if "index.blocks." in each and value == "true"]
            closed = [each for each in blocks if each.rpartition(".")[2] in ("write", "read_only")]
            if closed:
                raise TargetError(
                    f"the index {index} accepts no documents",
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
            if response.status == 400 and "resource_already_exists_exception" in response.reason():
                # Another driver was faster.
                response = client.send("PUT", path, json.dumps(FIELDS).encode())
        check(response, f"mapping the fields {VERSION_FIELD} and {DELETED_FIELD} of {self.options.index}")


class OpenSearchPartition(VersionedPartition):
    """Writes rows in bulk requests. A conflict is read back, and settled by what is stored."""

    sink: OpenSearchRequestSink

    classify = staticmethod(first_of(outfall_errors, otherwise=ErrorAction.FATAL))

    def __init__(self, sink: OpenSearchRequestSink) -> None:
        super().__init__(sink)
        self._client: OpenSearchClient = sink.access().client()
        # A data stream has several indices, and rows without keys.
        self._names = IndexNames(self._client) if sink.options.key_columns else None
        pipeline = sink.options.pipeline
        # Of each item, only the fields that are evaluated.
        self._path = "/_bulk?filter_path=items.*.status,items.*.error,items.*._index"
        self._path += "" if pipeline is None else f"&pipeline={quote(pipeline, safe='')}"

    def writes(self, changes: KeyedBatch) -> tuple[Sequence[Hashable], Sequence[bytes], Sequence[int]]:
        options: OpenSearchOptions = self.options
        places = _places(changes.rows, options)
        ids = places["_id"].to_pylist() if "_id" in places else [None] * changes.rows.num_rows
        keys = list(zip(places["_index"].to_pylist(), ids, strict=True))
        if options.index_column is not None:
            changes = replace(changes, rows=changes.rows.drop_columns([options.index_column]))
        found = actions(
            places, changes, self.version, creates=options.data_stream, removes=options.deletes == "remove"
        ).to_pylist()
        return keys, found, [len(action) for action in found]

    def send(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        reasons = self._refusals_of({index_of(entry) for entry in entries})
        if self.options.index in reasons:
            return RequestOutcome(error=_misled(reasons[self.options.index]))
        found = [(entry, index_of(entry)) for entry in entries if reasons]
        dead = [RefusedEntry(entry, reasons[index], _MISLED) for entry, index in found if index in reasons]
        kept = [entry for entry, index in found if index not in reasons] if dead else entries
        outcome = self._written(kept) if kept else RequestOutcome()
        return replace(outcome, dead=[*outcome.dead, *dead]) if dead else outcome

    def _refusals_of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names to which no row may go, with the reasons."""
        found = {name: self._names.refusal(name) for name in names} if self._names else {}
        return {name: reason for name, reason in found.items() if reason is not None}

    def _written(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        if self.version is not None and len({entry.key for entry in entries}) < len(entries):
            # Of several rows of a key, the first one is written. The greatest leaves nothing to do for the others.
            entries = sorted(entries, key=attrgetter("rank"), reverse=True)
        response = self._bulk([entry.write for entry in entries])
        if response.status >= 300:
            return _failed(entries, response, keyed=not self.options.data_stream)
        outcomes = Outcomes()
        conflicts: list[KeyedRow] | None = [] if self.version is not None else None
        self._take(zip(entries, _items(response, len(entries)), strict=True), outcomes, Answer.WRITTEN, conflicts)
        if conflicts:
            self._settle_conflicts(conflicts, outcomes)
        return outcomes.result(self.resolve)

    def _take(
        self,
        items: Iterable[tuple[KeyedRow, dict[str, Any]]],
        outcomes: Outcomes,
        written: Answer,
        conflicts: list[KeyedRow] | None = None,
    ) -> None:
        """Add rows by the items of a response, or to the conflicts."""
        for entry, item in items:
            action = action_on(item)
            if (action is None or item["status"] == CONFLICT) and (reason := self._astray(entry, item)):
                outcomes.failed([entry], ErrorAction.FATAL, reason, error=_misled(reason))
            elif action is None:
                outcomes.answered(entry, written)
            elif item["status"] == CONFLICT and conflicts is not None:
                conflicts.append(entry)
            else:
                reason, error = reason_of(item), (item.get("error") or {}).get("type")
                fatal = TargetError(
                    "the cluster rejected a document", why=reason, do="create the index, or grant access"
                )
                outcomes.failed([entry], action, reason, error and str(error), fatal)

    def _settle_conflicts(self, entries: Sequence[KeyedRow], outcomes: Outcomes, *, again: bool = True) -> None:
        """Read what is stored, and replace rows of this version whose rank is lower, if they are still stored.

        Do it `again` for what was replaced in the meantime, usually by another row of the same request.
        """
        docs = [place_of(entry.write) | {"_source": [VERSION_FIELD]} for entry in entries]
        response = self._client.send("POST", "/_mget", json.dumps({"docs": docs}).encode())
        if response.status >= 300:
            outcomes.failed(entries, ErrorAction.RETRY, response.reason())
            return
        lower: list[KeyedRow] = []
        writes: list[bytes] = []
        for entry, found in zip(entries, _docs(response, len(entries)), strict=True):
            if "error" in found:
                self._unread(entry, found, outcomes)
                continue
            answer = self._compared(entry, found)
            if answer is None:
                outcomes.failed([entry], ErrorAction.RETRY, "the document was changed in the meantime")
            elif answer is Answer.REPLACED:
                lower.append(entry)
                writes.append(if_unchanged(entry.write, found))
            else:
                outcomes.answered(entry, answer)
        if not lower:
            return
        response = self._bulk(writes)
        if response.status >= 300:
            outcomes.failed(lower, ErrorAction.RETRY, response.reason())
            return
        conflicts: list[KeyedRow] | None = [] if again else None
        self._take(zip(lower, _items(response, len(lower)), strict=True), outcomes, Answer.REPLACED, conflicts)
        if conflicts:
            self._settle_conflicts(conflicts, outcomes, again=False)

    def _astray(self, entry: KeyedRow, item: dict[str, Any]) -> str | None:
        """Return why a row was written into another index than the rows before it."""
        found = item.get("_index")
        return self._names.went_astray(index_of(entry), found) if self._names and found else None

    def _unread(self, entry: KeyedRow, found: dict[str, Any], outcomes: Outcomes) -> None:
        """Add a row whose stored document the cluster could not read."""
        reason = reason_of(found)
        error = TargetError(
            "the cluster cannot read a document that it has stored",
            why=reason,
            do="write to one index by its name, open it, and grant access to it",
        )
        outcomes.failed([entry], action_on_read(found["error"]), reason, error=error)

    def _compared(self, entry: KeyedRow, found: dict[str, Any]) -> Answer | None:
        """Return what a write is, compared with what is stored; `None` if it must be sent again."""
        if self.version is None:
            return None
        if not found.get("found"):
            # A removed document conflicts as long as the server knows its version, which is lost then. That of
            # sequences is always the same: once a tombstone was removed, the row waits until the server has forgotten.
            if self._by_sequence:
                return None
            return Answer.SAME if entry.write.startswith(b'{"delete"') else Answer.STALE
        token, _, rank = str((found.get("_source") or {}).get(VERSION_FIELD)).partition(" ")
        answer = self.version.answer(entry.rank, Version(found["_version"], token), rank)
        return None if answer is Answer.WRITTEN else answer

    def _bulk(self, lines: Sequence[bytes]) -> ClusterResponse:
        return self._client.send("POST", self._path, b"".join(lines), kind="application/x-ndjson")


def _places(batch: pa.RecordBatch, options: OpenSearchOptions) -> dict[str, pa.Array]:
    """Return where the documents of rows are. Raises `ValueRefusedError` for one that cannot be anywhere."""
    if options.index_column is None:
        places = {"_index": pa.repeat(pa.scalar(options.index), batch.num_rows)}
    else:
        places = {"_index": batch.column(options.index_column)}
        for name in places["_index"].unique().to_pylist():
            if reason := "it is NULL" if name is None else refusal(name):
                raise ValueRefusedError(
                    "the index of a row is not possible", why=reason, do="correct the column, or remove such rows"
                )
    if options.key_columns:
        places["_id"] = _ids([batch.column(name).cast(pa.string()) for name in options.key_columns])
    if options.routing_column is not None:
        places["routing"] = batch.column(options.routing_column)
    return places


def _ids(keys: Sequence[pa.Array]) -> pa.Array:
    """Return the ids of rows with the columns of their key: two keys never have one id."""
    if len(keys) > 1:
        keys = [pc.replace_substring(pc.replace_substring(key, "%", "%25"), ":", "%3A") for key in keys]
    ids = pc.binary_join_element_wise(*keys, ":")
    lengths = pc.min_max(pc.binary_length(ids)).as_py().values()
    for length in lengths:
        if length is not None and not 0 < length <= _LONGEST_ID:
            raise ValueRefusedError(
                f"the id of a row has {length} bytes, and 1 to {_LONGEST_ID} are possible",
                do="use other key_columns, or remove such rows",
            )
    return ids


def _items(response: ClusterResponse, count: int) -> list[dict[str, Any]]:
    """Return the items of a bulk response. Raises `TransientError` if it does not say what each write came to."""
    items = response.body.get("items")
    found = [next(iter(item.values()), None) if isinstance(item, dict) else None for item in listed(items)]
    if len(found) == count and all(isinstance(item, dict) and type(item.get("status")) is int for item in found):
        return found  # type: ignore[return-value]
    raise unreadable(f"the response to {count} writes", "it has not one status for each")


def _docs(response: ClusterResponse, count: int) -> list[dict[str, Any]]:
    """Return the documents of a multi-get response. Raises `TransientError` if it has not one for each."""
    docs = [doc for doc in listed(response.body.get("docs")) if isinstance(doc, dict)]
    if len(docs) == count and all("error" in doc or not doc.get("found") or "_version" in doc for doc in docs):
        return docs
    raise unreadable(f"the response to {count} reads", "it has not one document for each")


def index_of(entry: KeyedRow) -> str:
    """Return the name that a row goes to."""
    return cast("tuple[str, str | None]", entry.key)[0]


_MISLED = "several_indices"


def _misled(reason: str) -> TargetError:
    return TargetError(
        "rows with keys need one index",
        why=reason,
        do="set index to the name of one index, remove documents of this query from the others, and restart the query;"
        " to add rows to an alias that rolls over, use a data stream",
    )


def _failed(entries: Sequence[KeyedRow], response: ClusterResponse, *, keyed: bool) -> RequestOutcome[KeyedRow]:
    """Return what a request comes to that the cluster rejected as a whole.

    If a part of a request with an invalid line was stored, halves of it would store rows without keys twice.
    """
    if response.passes:
        return RequestOutcome(
            retry=entries, reason=response.reason(), after=response.after, hold_host=response.after is not None
        )
    if response.status == 413 or (response.status == 400 and (keyed or len(entries) == 1)):
        return RequestOutcome(split=entries, reason=response.reason(), code=str(response.status))
    return RequestOutcome(
        error=TargetError(
            "the cluster rejected a bulk request", why=response.reason(), do="correct the credentials or the options"
        )
    )
