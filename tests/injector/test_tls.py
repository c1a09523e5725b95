"""Which certificate files are accepted, and what is said about the others."""

import asyncio
import dataclasses
import datetime
import subprocess
from pathlib import Path

import pytest

from injector.certificates.certs import Lifetimes, renew
from injector.certificates.keep import DirectoryKeep
from injector.serving.tls import CertificateRefused, ServingContext, read_pair
from tests.injector.serving import make_certificates


def paths(directory: Path) -> tuple[str, str]:
    return str(directory / "tls.crt"), str(directory / "tls.key")


def test_a_good_pair(tmp_path: Path) -> None:
    material = make_certificates(tmp_path)
    pair = read_pair(*paths(tmp_path))
    assert pair.expiry > datetime.datetime.now(datetime.UTC)
    assert pair.pem == material.certificate + b"\n" + material.key


@pytest.mark.parametrize("kind", ["rsa:2048", "ed25519", "ec"])
def test_keys_of_cert_manager_and_openssl(tmp_path: Path, kind: str) -> None:
    curve = ["-pkeyopt", "ec_paramgen_curve:P-384"] if kind == "ec" else []
    command = ["openssl", "req", "-x509", "-newkey", kind, *curve, "-nodes", "-subj", "/CN=x", "-days", "3"]
    command += ["-out", paths(tmp_path)[0], "-keyout", paths(tmp_path)[1]]
    subprocess.run(command, check=True, capture_output=True)
    ServingContext(read_pair(*paths(tmp_path)))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda crt, key: crt.unlink(), "tls.crt: No such file"),
        (lambda crt, key: key.unlink(), "tls.key: No such file"),
        (lambda crt, key: crt.write_bytes(b""), "tls.crt: no PEM certificate"),
        (lambda crt, key: crt.write_bytes(key.read_bytes()), "tls.crt: no PEM certificate"),
        (lambda crt, key: crt.write_bytes(crt.read_bytes()[:300]), "tls.crt: no PEM certificate"),
        (lambda crt, key: key.write_bytes(crt.read_bytes()), "tls.key: no unencrypted PEM private key"),
        (lambda crt, key: key.write_bytes(b"x" * (2 << 20)), "tls.key: larger than"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, damage: object, said: str) -> None:
    material = make_certificates(tmp_path)
    for name, content in (("tls.crt", material.certificate), ("tls.key", material.key)):
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(content)
    damage(tmp_path / "tls.crt", tmp_path / "tls.key")  # type: ignore[operator]
    with pytest.raises(CertificateRefused) as refused:
        read_pair(*paths(tmp_path))
    assert said in str(refused.value)


def test_an_encrypted_key_is_refused_and_asks_for_nothing(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(tmp_path / "tls.key"), "-passout", "pass:x", "-out"]
    subprocess.run([*command, str(encrypted)], check=True, capture_output=True)
    with pytest.raises(CertificateRefused, match="no unencrypted PEM private key"):
        read_pair(str(tmp_path / "tls.crt"), str(encrypted))


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=40)
    material = renew(None, ("localhost",), Lifetimes(), past, announced=False).material
    asyncio.run(DirectoryKeep(str(tmp_path)).save(material))
    with pytest.raises(CertificateRefused, match=r"expired at .*renew it"):
        read_pair(*paths(tmp_path))


def test_key_and_certificate_of_two_pairs(tmp_path: Path) -> None:
    material = make_certificates(tmp_path)
    other = make_certificates(tmp_path / "other")
    asyncio.run(DirectoryKeep(str(tmp_path)).save(dataclasses.replace(material, key=other.key)))
    with pytest.raises(CertificateRefused, match="is not the key of"):
        read_pair(*paths(tmp_path))
