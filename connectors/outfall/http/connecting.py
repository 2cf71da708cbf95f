"""Connections to a server: TLS trust, client certificate, reachability, and the meaning of connection errors."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence

import certifi
import urllib3

from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.first_contact import NEVER_TLS, causes_of, is_unknown, never_passes
from outfall.http.options import HttpOptions
from outfall.http.templates import origin
from outfall.http.transport import Fault
from outfall.tls import system_authorities


def trusted(options: HttpOptions) -> str:
    """Return the file or directory of trusted certificates; those of `certifi` on a host that has none."""
    return options.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or system_authorities() or certifi.where()


def tls_context(options: HttpOptions) -> ssl.SSLContext:
    """Create the TLS context. Certificate and host name are verified unless the user disabled it.

    Raises `ConfigurationError` if a file does not exist, or contains no certificate.
    """
    try:
        place = trusted(options)
        directory = os.path.isdir(place)
        context = ssl.create_default_context(cafile=None if directory else place, capath=place if directory else None)
        if not options.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if options.client_certificate:
            context.load_cert_chain(options.client_certificate, options.client_key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            "the TLS certificates cannot be read on this host",
            why=error.strerror or type(error).__name__,
            do="copy the files of ca_bundle, client_certificate and client_key to the hosts of the driver and the"
            " executors; the key must not be encrypted",
        ) from error
    return context


def client_certificate(options: HttpOptions) -> str | tuple[str, str] | None:
    """Return the client certificate in the form that `requests` expects."""
    certificate, key = options.client_certificate, options.client_key
    return (certificate, key) if certificate and key else certificate


def reach(options: HttpOptions) -> Sequence[str]:
    """Open a connection, with TLS if the URL requires it, and close it.

    Raises `TransientError` if the server does not respond, `TargetError` if its name is unknown or TLS fails, and
    `ConfigurationError` if the trusted certificates cannot be read.
    """
    scheme, host, port = origin(options.url)
    context = tls_context(options) if scheme == "https" else None
    try:
        with socket.create_connection((host, port), timeout=options.connect_timeout.total_seconds()) as plain:
            if context is None:
                return [f"{host}:{port} accepts connections; no request was sent"]
            with context.wrap_socket(plain, server_hostname=host) as secure:
                version = secure.version()
    except OSError as error:
        raise (TransientError if never_passes(error) is None else TargetError)(
            f"{host}:{port} cannot be reached from here",
            why=f"{type(error).__name__}: {error}",
            do="correct the url, open the network path, or add the certificate authority to ca_bundle",
        ) from error
    return [f"{host}:{port} accepts connections with {version}; no request was sent"]


def translated(error: BaseException, place: str) -> tuple[Fault, str]:
    """Explain a connection error, and whether it is transient.

    An unknown host name and an untrusted certificate are permanent; a name server without a response is transient.
    """
    causes = causes_of(error)
    if any(isinstance(cause, urllib3.exceptions.ProxyError) for cause in causes):
        place = f"the proxy on the way to {place}"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Fault.CONFIGURATION, f"the certificate of {place} is not trusted: {cause.verify_message}"
        if isinstance(cause, socket.gaierror):
            fault = Fault.CONFIGURATION if is_unknown(cause) else Fault.NOT_SENT
            return fault, f"the name of {place} cannot be resolved: {cause.strerror}"
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        reasons = [cause.reason for cause in causes if isinstance(cause, ssl.SSLError)]
        fault = Fault.CONFIGURATION if NEVER_TLS & set(reasons) else Fault.NOT_SENT
        return fault, f"{place} does not support a common TLS version or cipher: {reasons[0] or 'unknown reason'}"
    codes = [cause.errno for cause in causes if isinstance(cause, OSError) and cause.errno is not None]
    if codes:
        return Fault.NOT_SENT, f"{place} cannot be reached ({errno.errorcode.get(codes[0], codes[0])})"
    if any(isinstance(cause, TimeoutError | urllib3.exceptions.ConnectTimeoutError) for cause in causes):
        return Fault.NOT_SENT, f"{place} does not accept a connection in time"
    # The only trace of a proxy's response that opens no tunnel is the text of `http.client`'s error.
    summary = next((str(cause) for cause in causes if type(cause) is OSError), type(error).__name__)
    return Fault.NOT_SENT, f"{place} cannot be reached ({summary})"
