"""An S3 server that discards all data, to measure clients: `python -m benchmarks.discarding_s3 0.05`.

It prints its port. The argument is the delay in seconds for the completion of an upload, as in a real store.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_ETAG = '"d41d8cd98f00b204e9800998ecf8427e"'
_MARKER = '{"incarnation": "0000000000000000", "matching": true}'
"""Every read returns the record of the only step."""
_CHUNK = 1 << 20


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, delay: float, *args: Any) -> None:
        self._delay = delay
        super().__init__(*args)

    def setup(self) -> None:
        super().setup()
        self._discarded = bytearray(_CHUNK)

    def do_POST(self) -> None:
        self._discard()
        url = urlsplit(self.path)
        bucket, _, key = url.path.lstrip("/").partition("/")
        named = f"<Bucket>{bucket}</Bucket><Key>{key}</Key>"
        if "uploads" in url.query.split("&"):
            self._answer(
                f"<InitiateMultipartUploadResult>{named}<UploadId>u</UploadId></InitiateMultipartUploadResult>"
            )
            return
        time.sleep(self._delay)
        etag = "<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e-1&quot;</ETag>"
        self._answer(f"<CompleteMultipartUploadResult>{named}{etag}</CompleteMultipartUploadResult>")

    def do_PUT(self) -> None:
        self._discard()
        self._answer("")

    def do_GET(self) -> None:
        self._answer(_MARKER)

    def do_HEAD(self) -> None:
        self._answer("")

    def do_DELETE(self) -> None:
        self._answer("")

    def log_message(self, *args: Any) -> None:
        pass

    def _discard(self) -> None:
        left = int(self.headers.get("Content-Length", 0))
        view = memoryview(self._discarded)
        while left:
            count = self.rfile.readinto(view[: min(left, _CHUNK)])
            if not count:
                return
            left -= count

    def _answer(self, body: str) -> None:
        self.send_response(200)
        self.send_header("ETag", _ETAG)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def discarding_s3(delay: float = 0.0) -> Iterator[str]:
    """Run the server in a separate process, and yield its address."""
    command = [sys.executable, "-m", "benchmarks.discarding_s3", str(delay)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def serve(delay: float) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, delay)) as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(float(sys.argv[1]))
