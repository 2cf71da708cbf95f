"""What of a failed connection no outage explains."""

from __future__ import annotations

import http.client
import socket
import ssl

import pytest

from outfall.first_contact import never_passes


@pytest.mark.parametrize(
    ("error", "never"),
    [
        (http.client.BadStatusLine("+PONG"), True),
        (http.client.RemoteDisconnected("closed without response"), False),
        (ConnectionRefusedError(), False),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), True),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), False),
        (ssl.SSLCertVerificationError("untrusted"), True),
        (ConnectionResetError(), False),
    ],
)
def test_what_no_outage_explains(error: Exception, never: bool) -> None:
    wrapped = OSError("the client's own error")
    wrapped.__cause__ = error
    assert (never_passes(wrapped) is not None) is never
