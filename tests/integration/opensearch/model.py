"""A small model of the bulk interface of OpenSearch, in a process of its own, with faults.

It was compared with OpenSearch 2.19: `tests/peers/services/test_opensearch_sink.py` runs the same tests on a node.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import urllib3

from tests.documents import ROOT
from tests.integration.support.servers import OwnServer, free_port, listens


class Model:
    """The indices of a cluster. `number` fields reject text, as a mapping does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.indices: dict[str, dict[str, dict[str, Any]]] = {}
        self.aliases: dict[str, list[str]] = {}
        """The last index of an alias takes what is written."""
        self.blocks: dict[str, str] = {}
        self.sequence = 0
        self.chance = random.Random(7)
        self.faults = {"refused": 0.0, "items": 0.0, "lost": 0.0}
        self.requests: list[dict[str, Any]] = []

    def write(self, name: str, meta: dict[str, Any], source: Any) -> dict[str, Any]:
        """Apply an action, and return its item."""
        where = self.aliases.get(meta["_index"], [meta["_index"]])[-1]
        return {"_index": where} | self._write_into(self.indices.setdefault(where, {}), name, meta, source)

    def _write_into(self, index: dict[str, Any], name: str, meta: dict[str, Any], source: Any) -> dict[str, Any]:
        key = meta.get("_id") or f"auto-{self.sequence}"
        old = index.get(key)
        if self.chance.random() < self.faults["items"]:
            return _error(429, "rejected_execution_exception", "rejected execution")
        if source is not None and isinstance(source.get("number"), str):
            return _error(400, "mapper_parsing_exception", "failed to parse field [number]")
        exists = old is not None and old["source"] is not None
        version = (old["version"] if old else 0) + 1
        if "version" in meta:
            if old is not None and old["version"] >= meta["version"]:
                return _error(409, "version_conflict_engine_exception", "version conflict")
            version = meta["version"]
        if "if_seq_no" in meta and (old is None or old["sequence"] != meta["if_seq_no"]):
            return _error(409, "version_conflict_engine_exception", "version conflict")
        if name == "create" and exists:
            return _error(409, "version_conflict_engine_exception", "document already exists")
        self.sequence += 1
        index[key] = {"version": version, "sequence": self.sequence, "source": source}
        if name == "delete":
            return {"status": 200 if exists else 404, "result": "deleted" if exists else "not_found"}
        return {"status": 200 if exists else 201}

    def read(self, index: str, key: str) -> dict[str, Any]:
        behind = self.aliases.get(index, [index])
        if len(behind) > 1:
            reason = f"alias [{index}] has more than one index associated with it"
            return {"_index": index, "_id": key} | _error(400, "illegal_argument_exception", reason)
        found = self.indices.get(behind[0], {}).get(key)
        if found is None or found["source"] is None:
            return {"_index": index, "_id": key, "found": False}
        return {
            "_index": index, "_id": key, "found": True, "_version": found["version"], "_seq_no": found["sequence"],
            "_primary_term": 1, "_source": found["source"],
        }  # fmt: skip


def _error(status: int, kind: str, reason: str) -> dict[str, Any]:
    return {"status": status, "error": {"type": kind, "reason": reason}}


class Handler(BaseHTTPRequestHandler):
    """Answers requests from the model of its class."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    model: ClassVar[Model] = Model()

    def handle_any(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        with self.model.lock:
            status, answer = self._answer(unquote(urlsplit(self.path).path), body)
            bulk = "_bulk" in self.path
            if bulk and status == 200 and self.model.chance.random() < self.model.faults["lost"]:
                self.close_connection = True
                return
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        model, parts = self.model, path.strip("/").split("/")
        if path == "/":
            return 200, {"version": {"distribution": "opensearch", "number": "2.19.1"}}
        if path == "/_faults":
            model.faults |= json.loads(body)
            return 200, {}
        if path == "/_requests":
            return 200, model.requests
        if path == "/_bulk":
            model.requests.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            if model.chance.random() < model.faults["refused"]:
                return 429, _error(429, "circuit_breaking_exception", "Data too large")
            return 200, {"items": self._bulk(body)}
        if path == "/_mget":
            return 200, {"docs": [model.read(doc["_index"], doc["_id"]) for doc in json.loads(body)["docs"]]}
        if parts[-1] == "_block":
            model.blocks[parts[0]] = "true"
            return 200, {}
        if path == "/_aliases":
            for added in [action["add"] for action in json.loads(body)["actions"]]:
                behind = model.aliases.setdefault(added["alias"], [])
                behind[:] = [*(index for index in behind if index != added["index"]), added["index"]]
            return 200, {}
        if parts[-1] == "_settings":
            behind = model.aliases.get(parts[0], [parts[0]])
            if behind[0] not in model.indices:
                return 404, _error(404, "index_not_found_exception", "no such index")
            settings = {"index.blocks.write": "true"} if parts[0] in model.blocks else {}
            return 200, {index: {"settings": settings} for index in behind}
        if parts[-1] == "_mapping" and model.aliases.get(parts[0], [parts[0]])[0] not in model.indices:
            return 404, _error(404, "index_not_found_exception", "no such index")
        if parts[-1] in ("_mapping", "_refresh"):
            return 200, {}
        if parts[-1] == "_search":
            found = [model.read(parts[0], key) for key in model.indices.get(parts[0], {})]
            return 200, {"hits": {"hits": [hit for hit in found if hit["found"]]}}
        if len(parts) == 1:
            if self.command == "DELETE":
                return 200, [model.indices.pop(parts[0], None), {}][1]
            model.indices.setdefault(parts[0], {})
            return 200, {}
        return self._document(parts[0], parts[2], body)

    def _document(self, index: str, key: str, body: bytes) -> tuple[int, Any]:
        given = {
            name: int(value[0]) for name, value in parse_qs(urlsplit(self.path).query).items() if value[0].isdigit()
        }
        if self.command == "GET":
            found = self.model.read(index, key)
            return 200 if found["found"] else 404, found
        meta = {"_index": index, "_id": key} | given
        kept, self.model.faults = self.model.faults, dict.fromkeys(self.model.faults, 0.0)
        if self.command == "DELETE":
            item = self.model.write("delete", meta, None)
        else:
            item = self.model.write("index" if given else "create", meta, json.loads(body))
        self.model.faults = kept
        return item["status"], item

    def _bulk(self, body: bytes) -> list[dict[str, Any]]:
        lines, items = iter(body.splitlines()), []
        for line in lines:
            ((name, meta),) = json.loads(line).items()
            items.append({name: self.model.write(name, meta, None if name == "delete" else json.loads(next(lines)))})
        return items

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class Cluster:
    """A cluster at a URL, read by a client beside the code under test."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return json.loads(urllib3.request(method, self.url + path, body=data, headers=headers).data or b"null")

    def faults(self, **shares: float) -> None:
        self.ask("POST", "/_faults", {"refused": 0.0, "items": 0.0, "lost": 0.0} | shares)

    def raw(self, index: str) -> dict[str, dict[str, Any]]:
        """Every document by its id, as it is stored; none if the index is missing."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("POST", f"/{index}/_search?size=10000", {"query": {"match_all": {}}})
        return {hit["_id"]: hit["_source"] for hit in found.get("hits", {"hits": []})["hits"]}

    def rows(self, index: str) -> dict[str, dict[str, Any]]:
        """Every row by its id, as a reader sees it that leaves out tombstones, without the version."""
        return {
            key: {name: value for name, value in source.items() if name != "outfall_version"}
            for key, source in self.raw(index).items()
            if "outfall_deleted" not in source
        }


@contextmanager
def model_process(folder: Path) -> Iterator[Cluster]:
    """Run the model."""
    port = free_port()
    command = [sys.executable, "-m", __name__, str(port)]
    server = OwnServer(command, folder / "server-log", lambda: listens(port), PYTHONPATH=str(ROOT))
    server.start()
    try:
        yield Cluster(f"http://127.0.0.1:{port}")
    finally:
        server.kill()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
