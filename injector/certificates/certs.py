"""A CA and the serving certificate that it signs: made, renewed and rotated. Pure: no file, no cluster, no clock.

Nothing may fail while a CA is replaced, so it takes three passes. First the next CA is made and only announced: the
API server trusts both. When that has been so for a while, the next CA becomes the signing one and signs a new serving
certificate. The old CA stays trusted until it expires, since its certificate may still be served somewhere.
"""

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_SKEW: Final = datetime.timedelta(minutes=5)  # certificates begin this much earlier


class Lifetimes(NamedTuple):
    """How long things live. Each is renewed when a third of its life is left."""

    authority: datetime.timedelta = datetime.timedelta(days=365)
    serving: datetime.timedelta = datetime.timedelta(days=30)
    overlap: datetime.timedelta = datetime.timedelta(minutes=10)  # from announcing a CA to signing with it


@dataclass(frozen=True)
class Material:
    """All of it as PEM. `bundle` holds every CA to trust; the keys tell which of them signs, and which is next."""

    bundle: bytes
    authority_key: bytes = field(repr=False)
    certificate: bytes
    key: bytes = field(repr=False)
    next_key: bytes = field(default=b"", repr=False)


class Authority(NamedTuple):
    """A CA that we have the key of."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Renewal(NamedTuple):
    """What the material should be now, and what was done to it, in words for a log."""

    material: Material
    steps: tuple[str, ...]


def renew(
    material: Material | None,
    names: Sequence[str],
    lifetimes: Lifetimes,
    now: datetime.datetime,
    *,
    announced: bool,
) -> Renewal:
    """One pass. `announced` says that whoever must trust `material.bundle` was seen to have it."""
    steps: list[str] = []
    trusted, signing, following = _read(material) if material else ([], None, None)
    if following and _left(following.certificate, now) <= 0:
        following = None
    if following and (signing is None or _left(signing.certificate, now) <= 0):  # even if not everybody trusts it yet
        signing, following = following, None
        steps.append("signing with the next CA")
    elif signing is None or _left(signing.certificate, now) <= 0:
        signing, following = _new_authority(lifetimes.authority, now), None
        trusted = [signing.certificate, *trusted]
        steps.append("made a CA")
    trusted = [found for found in trusted if found.not_valid_after_utc > now]
    if following is None and _left(signing.certificate, now) < 1 / 3:
        following = _new_authority(lifetimes.authority, now)
        trusted = [following.certificate, *trusted]
        steps.append("announced the next CA")
    elif following and announced and now >= following.certificate.not_valid_before_utc + CLOCK_SKEW + lifetimes.overlap:
        signing, following = following, None
        steps.append("signing with the next CA")
    certificate, key = (material.certificate, material.key) if material else (b"", b"")
    if not _serves(certificate, key, signing.certificate, names, now):
        certificate, key = _issue(signing, names, lifetimes.serving, now)
        steps.append("issued a serving certificate")
    renewed = Material(
        bundle=b"".join(found.public_bytes(Encoding.PEM) for found in trusted),
        authority_key=_key_pem(signing.key),
        certificate=certificate,
        key=key,
        next_key=_key_pem(following.key) if following else b"",
    )
    if material and not steps and renewed.bundle != material.bundle:
        steps.append("dropped an expired CA")
    return Renewal(renewed, tuple(steps)) if steps or not material else Renewal(material, ())


def expiry(material: Material) -> datetime.datetime:
    """When the serving certificate expires."""
    return x509.load_pem_x509_certificate(material.certificate).not_valid_after_utc


def _read(material: Material) -> tuple[list[x509.Certificate], Authority | None, Authority | None]:
    """The trusted CAs, the signing one and the next one; what cannot be read counts as not there."""
    try:
        trusted = x509.load_pem_x509_certificates(material.bundle)
    except ValueError:
        return [], None, None
    return trusted, _authority(trusted, material.authority_key), _authority(trusted, material.next_key)


def _authority(trusted: Iterable[x509.Certificate], key_pem: bytes) -> Authority | None:
    key = _private_key(key_pem)
    if key is None:
        return None
    for certificate in trusted:
        if _same_key(certificate, key):
            return Authority(certificate, key)
    return None


def _serves(
    certificate: bytes, key_pem: bytes, authority: x509.Certificate, names: Sequence[str], now: datetime.datetime
) -> bool:
    """Whether the serving certificate is whole, signed by this CA, for these names and young enough."""
    key = _private_key(key_pem)
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        leaf.verify_directly_issued_by(authority)
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    wanted = x509.SubjectAlternativeName(_general_names(names))
    return key is not None and _same_key(leaf, key) and found == wanted and _left(leaf, now) > 1 / 3


def _left(certificate: x509.Certificate, now: datetime.datetime) -> float:
    """The part of its life that a certificate still has."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return (certificate.not_valid_after_utc - now) / life


def _new_authority(life: datetime.timedelta, now: datetime.datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial makes the subject unique: a verifier that finds issuers by name must not mix up two generations.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"initless injector CA {serial:x}"[:64])])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key.public_key(), serial, now, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def _issue(
    authority: Authority, names: Sequence[str], life: datetime.timedelta, now: datetime.datetime
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "initless injector")])
    end = min(now + life, authority.certificate.not_valid_after_utc)
    issuer_id = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, authority.certificate.subject, key.public_key(), x509.random_serial_number(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM), _key_pem(key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
    )


def _general_names(names: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _same_key(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
