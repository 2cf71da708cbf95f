"""Whom TLS trusts by default, on every sink: the authorities of the system."""

from __future__ import annotations

import os
import ssl

_BUNDLES = ("ca-certificates.crt", "ca-bundle.crt", "ca-bundle.pem")
"""The names under which distributions keep all authorities as one file, in the directory for OpenSSL."""


def system_authorities() -> str | None:
    """Return the file with the system's trusted authorities (PEM); `None` if the host has none.

    It is called on each host that connects. OpenSSL inside the wheels of libraries looks for it elsewhere, so they need
    its path. `SSL_CERT_FILE` and `SSL_CERT_DIR` name another one, as for OpenSSL.
    """
    found = ssl.get_default_verify_paths()
    files = [found.cafile] if found.cafile else [os.path.join(found.capath or "", name) for name in _BUNDLES]
    return next((file for file in files if os.path.isfile(file)), None)


def verifying_context(authorities: str | None) -> ssl.SSLContext:
    """Return a context that verifies certificates and host names.

    It trusts the authorities in a file (PEM), or the system's. Raises `OSError` if the file cannot be read.
    """
    context = ssl.create_default_context(cafile=authorities)
    system = system_authorities()
    if authorities is None and system is not None:
        # Python's OpenSSL may look for them elsewhere too.
        context.load_verify_locations(system)
    return context
