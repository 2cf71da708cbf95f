"""Reaching a server: whom TLS trusts, who we are, whether somebody is there, and what an error on the way means."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any

import certifi
import urllib3

from outfall.errors import ConfigurationError, TargetError
from outfall.http.options import HttpOptions
from outfall.http.templates import origin
from outfall.http.transport import Fault


def trusted(options: HttpOptions) -> str:
    """Return the file of the certificates to trust, or a directory of such files, as `requests` finds it."""
    return options.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()


def tls_context(options: HttpOptions) -> ssl.SSLContext:
    """Make the settings of TLS: certificate and host name are verified unless the user turned that off.

    Raises:
        ConfigurationError: a file is not there, or holds no certificate.
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
            "the certificates for TLS cannot be read on this host",
            why=error.strerror or type(error).__name__,
            do="put the files of ca_bundle, client_certificate and client_key on the driver's and the executors' hosts;"
            " a key must not be encrypted",
        ) from error
    return context


def client_certificate(options: HttpOptions) -> str | tuple[str, str] | None:
    """Return the client's certificate as `requests` takes it."""
    certificate, key = options.client_certificate, options.client_key
    return (certificate, key) if certificate and key else certificate


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


def explained(error: BaseException, place: str) -> tuple[Fault, str]:
    """Tell what an error on connecting means: whether it will pass.

    An unknown host name and a certificate that is not trusted will not; a name server that does not answer may.
    """
    causes = causes_of(error)
    if any(isinstance(cause, urllib3.exceptions.ProxyError) for cause in causes):
        place = f"the proxy on the way to {place}"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Fault.CONFIGURATION, f"the certificate of {place} is not trusted: {cause.verify_message}"
        if isinstance(cause, socket.gaierror):
            unknown = cause.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
            fault = Fault.CONFIGURATION if unknown else Fault.NOT_SENT
            return fault, f"the name of {place} cannot be resolved: {cause.strerror}"
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        reasons = [cause.reason for cause in causes if isinstance(cause, ssl.SSLError)]
        never = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"}
        fault = Fault.CONFIGURATION if never & set(reasons) else Fault.NOT_SENT
        return fault, f"{place} does not speak TLS as we do: {reasons[0] or 'unknown reason'}"
    codes = [cause.errno for cause in causes if isinstance(cause, OSError) and cause.errno is not None]
    if codes:
        return Fault.NOT_SENT, f"{place} cannot be reached ({errno.errorcode.get(codes[0], codes[0])})"
    if any(isinstance(cause, TimeoutError | urllib3.exceptions.ConnectTimeoutError) for cause in causes):
        return Fault.NOT_SENT, f"{place} does not accept a connection in time"
    # `http.client` says so, and in no other way, what a proxy answered that opens no tunnel.
    told = next((str(cause) for cause in causes if type(cause) is OSError), type(error).__name__)
    return Fault.NOT_SENT, f"{place} cannot be reached ({told})"


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and all that lies behind it: libraries wrap what happened, each in its own way."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, BaseException) and cause not in found:
            found.append(cause)
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
    return found
