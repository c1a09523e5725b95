"""The serving certificate: read whole, checked, and put into a live TLS context without touching a connection."""

import datetime
import os
import ssl
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

MAX_PEM: Final = 1 << 20  # bytes of one file; a real chain with its key is below 20 kB


class CertificateRefused(ValueError):
    """A certificate or key that cannot serve; the message names the file and what to do."""


@dataclass(frozen=True)
class KeyPair:
    """A certificate chain and its key as one PEM text, and when the leaf expires."""

    pem: bytes
    expiry: datetime.datetime
    serial: int


def read_pair(certificate_file: str, key_file: str) -> KeyPair:
    """Reads both files once and proves that they belong together and are not expired."""
    certificate_pem = _content(certificate_file)
    key_pem = _content(key_file)
    try:
        leaf = x509.load_pem_x509_certificates(certificate_pem)[0]
    except ValueError as error:
        raise CertificateRefused(f"{certificate_file}: no PEM certificate in it ({error})") from None
    try:
        key = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key is encrypted
        raise CertificateRefused(f"{key_file}: no unencrypted PEM private key in it ({error})") from None
    encoding = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*encoding) != leaf.public_key().public_bytes(*encoding):
        raise CertificateRefused(f"{key_file}: is not the key of {certificate_file}")
    if leaf.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise CertificateRefused(
            f"{certificate_file}: expired at {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}; renew it (injector certs)"
        )
    pair = KeyPair(certificate_pem + b"\n" + key_pem, leaf.not_valid_after_utc, leaf.serial_number)
    _load(new_context(), pair)  # OpenSSL has stricter rules (key size, chain order): fail here, not on the live one
    return pair


class ServingContext:
    """The TLS context of the listener. Connections keep the certificate they began with; new ones get the newest."""

    def __init__(self, pair: KeyPair) -> None:
        self.context = new_context()
        self.replace(pair)

    def replace(self, pair: KeyPair) -> None:
        """Puts a checked pair in place; the same bytes were loaded once before, so this cannot fail half way."""
        _load(self.context, pair)
        self.pair = pair


def new_context() -> ssl.SSLContext:
    """TLS 1.2 and up, no client certificate, HTTP/1.1 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    # The API server keeps its connections and does not resume sessions: tickets would be two more records each.
    context.num_tickets = 0
    return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    # The ssl module reads files only, and the files may change between two reads: give it an anonymous copy.
    descriptor = os.memfd_create("serving-certificate")
    try:
        os.write(descriptor, pair.pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise CertificateRefused(f"the certificate and its key: {error}") from None
    finally:
        os.close(descriptor)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_PEM + 1)
    except OSError as error:
        raise CertificateRefused(f"{path}: {error.strerror}; mount it, or let injector certs make it") from None
    if len(content) > MAX_PEM:
        raise CertificateRefused(f"{path}: larger than {MAX_PEM} bytes; that is no PEM certificate or key")
    return content
