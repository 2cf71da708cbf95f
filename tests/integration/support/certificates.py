"""Certificates for servers of this host."""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed(address: str) -> bytes:
    """Make a certificate for an IP address, signed by itself, and behind it its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM) + private


def subject_hash(certificate: bytes) -> str:
    """Return what `openssl rehash` calls a certificate of `self_signed`: SHA-1 of its subject in canonical form.

    That form is the subject's encoding without its outermost header, in lower case; ours is in lower case as it is.
    """
    subject = x509.load_pem_x509_certificate(certificate).subject.public_bytes()
    return hashlib.sha1(subject[2:], usedforsecurity=False).digest()[3::-1].hex()
