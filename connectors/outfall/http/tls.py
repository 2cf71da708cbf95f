"""Whom to trust, and who we are."""

from __future__ import annotations

import os
import ssl

import certifi

from outfall.errors import ConfigurationError
from outfall.http.options import HttpOptions


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
