"""A WSGI application, such as an emulator of AWS, on a free port of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from werkzeug.serving import make_server

from tests.integration.support.servers import free_port


@contextmanager
def served(application: Any) -> Iterator[str]:
    """Serve it, each request in a thread. Yields the URL."""
    server = make_server("127.0.0.1", free_port(), application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
