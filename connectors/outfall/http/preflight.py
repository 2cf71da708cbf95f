"""Whether a server can be reached at all. No request is sent: any might have an effect."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from outfall.errors import TargetError
from outfall.http.options import HttpOptions
from outfall.http.templates import origin
from outfall.http.tls import tls_context


def reach(options: HttpOptions) -> Sequence[str]:
    """Open a connection, with TLS where the URL has it, and close it.

    Raises:
        TargetError: nobody answers there, or not as TLS wants it.
        ConfigurationError: the certificates to trust cannot be read.
    """
    scheme, host, port = origin(options.url)
    context = tls_context(options) if scheme == "https" else None
    try:
        with socket.create_connection((host, port), timeout=options.connect_timeout.total_seconds()) as plain:
            if context is None:
                return [f"{host}:{port} answers; whether it accepts requests was not tried"]
            with context.wrap_socket(plain, server_hostname=host) as secure:
                version = secure.version()
    except OSError as error:
        raise TargetError(
            f"{host}:{port} cannot be reached from here",
            why=f"{type(error).__name__}: {error}",
            do="correct the url; or open the way to it, and give its certificate's authority as ca_bundle",
        ) from error
    return [f"{host}:{port} answers by {version}; whether it accepts requests was not tried"]
