"""Certificates over a simulated life: nothing that is served is ever untrusted, and nothing expires."""

import asyncio
import base64
import dataclasses
import datetime
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from cni_agent.apiserver import ApiError, ApiServer
from injector.certificates import keep
from injector.certificates.announce import FIELD_MANAGER, PATH
from injector.certificates.certs import Lifetimes, Material, expiry, renew
from injector.certificates.keep import SERVING, Conflict, DirectoryKeep, SecretKeep
from injector.certificates.renewal import Duty, Incomplete
from injector.commands.certs import certs
from tests.injector.fake_apiserver import FakeApiServer, fake_apiserver
from tests.injector.serving import ROOT

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAMES = ("initless-injector.istio-system.svc", "10.0.0.7")
DAY = datetime.timedelta(days=1)
LIFETIMES = Lifetimes(authority=90 * DAY, serving=20 * DAY, overlap=DAY / 2)
SECRETS = "/api/v1/namespaces/istio-system/secrets"


def trusted(certificate: bytes, bundle: bytes, when: datetime.datetime) -> bool:
    """Whether a client with `bundle` accepts `certificate`: by cryptography's own path validation."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(when).build_server_verifier(x509.DNSName(NAMES[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except x509.verification.VerificationError:
        return False
    return True


def test_a_new_certificate_is_trusted_by_openssl_too(tmp_path: Path) -> None:
    material = renew(None, NAMES, LIFETIMES, datetime.datetime.now(datetime.UTC), announced=False).material
    asyncio.run(DirectoryKeep(str(tmp_path)).save(material))
    verify = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(tmp_path / "ca.crt")]
    for option in (["-verify_hostname", NAMES[0]], ["-verify_ip", NAMES[1]]):
        done = subprocess.run([*verify, *option, str(tmp_path / "tls.crt")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_two_years_without_a_moment_of_distrust() -> None:
    """What clients trust lags a pass behind, what is served two: each served certificate must be accepted."""
    now = START
    material = renew(None, NAMES, LIFETIMES, now, announced=False).material
    trust = [material.bundle]
    served = [material.certificate]
    authorities: set[bytes] = set()
    for _ in range(2 * 2 * 365):
        now += DAY / 2
        material = renew(material, NAMES, LIFETIMES, now, announced=trust[-1] == material.bundle).material
        trust.append(material.bundle)
        served.append(material.certificate)
        authorities.add(material.authority_key)
        for bundle in trust[-2:]:
            for certificate in served[-3:]:
                assert trusted(certificate, bundle, now)
        assert expiry(material) > now + LIFETIMES.serving / 4
        assert len(x509.load_pem_x509_certificates(material.bundle)) <= 3
    assert len(authorities) > 8


def test_a_next_ca_does_not_sign_before_it_is_announced() -> None:
    now = START
    first = renew(None, NAMES, LIFETIMES, now, announced=False).material
    now += 70 * DAY
    pending = renew(first, NAMES, LIFETIMES, now, announced=True).material
    assert pending.next_key
    assert pending.authority_key == first.authority_key
    later = renew(pending, NAMES, LIFETIMES, now + DAY, announced=False)
    assert later.material.authority_key == first.authority_key
    early = renew(pending, NAMES, LIFETIMES, now + DAY / 4, announced=True)
    assert early.material.authority_key == first.authority_key
    promoted = renew(pending, NAMES, LIFETIMES, now + DAY, announced=True)
    assert promoted.material.authority_key == pending.next_key
    assert "signing with the next CA" in promoted.steps


def test_nothing_to_do_changes_nothing() -> None:
    material = renew(None, NAMES, LIFETIMES, START, announced=False).material
    again = renew(material, NAMES, LIFETIMES, START + DAY, announced=True)
    assert again == (material, ())


@pytest.mark.parametrize("field", ["bundle", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("damage", [b"", b"-----BEGIN nonsense", b"\xff"])
def test_damage_is_mended(field: str, damage: bytes) -> None:
    material = renew(None, NAMES, LIFETIMES, START, announced=False).material
    mended = renew(dataclasses.replace(material, **{field: damage}), NAMES, LIFETIMES, START, announced=True)
    assert mended.steps
    assert trusted(mended.material.certificate, mended.material.bundle, START)


def test_other_names_need_another_certificate_of_the_same_ca() -> None:
    material = renew(None, NAMES, LIFETIMES, START, announced=False).material
    other = renew(material, (*NAMES, "extra"), LIFETIMES, START, announced=True)
    assert other.steps == ("issued a serving certificate",)
    assert other.material.bundle == material.bundle


def test_after_a_long_sleep_an_expired_ca_is_replaced_at_once() -> None:
    material = renew(None, NAMES, LIFETIMES, START, announced=False).material
    late = START + 200 * DAY
    woken = renew(material, NAMES, LIFETIMES, late, announced=False).material
    assert trusted(woken.certificate, woken.bundle, late)
    assert len(x509.load_pem_x509_certificates(woken.bundle)) == 1


def test_at_its_end_a_ca_is_followed_by_the_one_that_was_announced() -> None:
    first = renew(None, NAMES, LIFETIMES, START, announced=False).material
    pending = renew(first, NAMES, LIFETIMES, START + 70 * DAY, announced=True).material
    late = START + 91 * DAY
    woken = renew(pending, NAMES, LIFETIMES, late, announced=False).material
    assert woken.authority_key == pending.next_key
    assert not woken.next_key
    assert trusted(woken.certificate, pending.bundle, late)  # by whoever heard of it in time


def test_two_cas_that_have_both_expired_are_replaced() -> None:
    first = renew(None, NAMES, LIFETIMES, START, announced=False).material
    pending = renew(first, NAMES, LIFETIMES, START + 70 * DAY, announced=True).material
    late = START + 300 * DAY
    woken = renew(pending, NAMES, LIFETIMES, late, announced=False).material
    assert woken.authority_key not in (pending.authority_key, pending.next_key)
    assert trusted(woken.certificate, woken.bundle, late)


# A directory


def test_a_directory_is_replaced_in_one_step(tmp_path: Path) -> None:
    async def talk() -> None:
        first = renew(None, NAMES, LIFETIMES, START, announced=False).material
        second = renew(first, NAMES, LIFETIMES, START + 70 * DAY, announced=False).material
        where = DirectoryKeep(str(tmp_path))
        for material in (first, second, first):
            await where.save(material)
            assert await where.load() == material
        assert not (tmp_path / "ca-next.key").is_symlink()
        assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600
        assert len([path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()]) == 1

    asyncio.run(talk())


def test_what_is_there_already_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("by hand")
    (tmp_path / "ca.crt").write_text("by hand")
    material = renew(None, NAMES, LIFETIMES, START, announced=False).material
    asyncio.run(DirectoryKeep(str(tmp_path)).save(material))
    assert (tmp_path / "tls.crt").read_bytes() == material.certificate


# A Secret, and caBundle


def duty(api: ApiServer, export: DirectoryKeep | None = None, *configurations: str) -> Duty:
    return Duty(SecretKeep(api, "istio-system", "certs"), export, api, configurations, NAMES, LIFETIMES)


async def configuration(api: FakeApiServer, name: str = "ours", **entry: object) -> None:
    webhooks = [
        {"name": f"{kind}.initless.io", "clientConfig": {"service": {"name": "initless-injector"}}, **entry}
        for kind in ("namespace", "object")
    ]
    await api.put(PATH, name, webhooks=webhooks)


def bundles(api: FakeApiServer, name: str = "ours") -> set[bytes]:
    return {base64.b64decode(entry["clientConfig"]["caBundle"]) for entry in api.collections[PATH][name]["webhooks"]}


def test_secret_and_ca_bundle_from_nothing(tmp_path: Path) -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            await configuration(api)
            work = duty(client, DirectoryKeep(str(tmp_path), SERVING), "ours")
            material = await work.run_once(START)
            assert bundles(api) == {material.bundle}
            assert all(entry["caBundleManager"] == FIELD_MANAGER for entry in api.collections[PATH]["ours"]["webhooks"])
            assert (tmp_path / "tls.crt").read_bytes() == material.certificate
            assert not (tmp_path / "ca.key").exists()
            writes = [request for request in api.requests if request[0] != "GET"]
            assert await work.run_once(START + DAY) == material
            assert [request for request in api.requests if request[0] != "GET"] == writes

    asyncio.run(talk())


def test_a_whole_rotation_through_the_secret() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            await configuration(api)
            work = duty(client, None, "ours")
            first = await work.run_once(START)
            pending = await work.run_once(START + 70 * DAY)
            assert bundles(api) == {pending.bundle}
            assert trusted(pending.certificate, first.bundle, START + 70 * DAY)
            rotated = await work.run_once(START + 71 * DAY)
            assert rotated.authority_key == pending.next_key
            assert bundles(api) == {rotated.bundle}
            assert "ca-next.key" not in api.collections[SECRETS]["certs"]["data"]
            assert trusted(rotated.certificate, pending.bundle, START + 71 * DAY)

    asyncio.run(talk())


def test_a_bundle_that_somebody_else_set_is_taken_over() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            await configuration(api, caBundleManager="somebody")
            for entry in api.collections[PATH]["ours"]["webhooks"]:
                entry["clientConfig"]["caBundle"] = base64.b64encode(b"theirs").decode()
            material = await duty(client, None, "ours").run_once(START)
            assert bundles(api) == {material.bundle}
            forced = [query.get("force") for method, _, query in api.requests if method == "PATCH"]
            assert forced == [None, "true"]

    asyncio.run(talk())


def test_two_writers_agree_on_one_secret() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            api.collections[SECRETS] = {}
            one, two = SecretKeep(client, "istio-system", "certs"), SecretKeep(client, "istio-system", "certs")
            first = renew(None, NAMES, LIFETIMES, START, announced=False).material
            second = renew(None, NAMES, LIFETIMES, START, announced=False).material
            assert await one.load() is None
            assert await two.load() is None
            await one.save(first)
            with pytest.raises(Conflict):  # already exists
                await two.save(second)
            assert await two.load() == first
            await one.load()
            await one.save(second)
            with pytest.raises(Conflict):  # another resourceVersion
                await two.save(first)
            assert await two.load() == second

    asyncio.run(talk())


def test_many_writers_in_parallel_end_with_one_ca() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            api.collections[SECRETS] = {}
            await configuration(api)
            tasks = [asyncio.ensure_future(duty(client, None, "ours").run(0.05)) for _ in range(6)]
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            kept = await SecretKeep(client, "istio-system", "certs").load()
            assert kept
            assert bundles(api) == {kept.bundle}
            assert sum(method == "POST" for method, _, _ in api.requests) >= 1

    asyncio.run(talk())


def test_a_missing_configuration_is_named_and_certificates_are_made_all_the_same(tmp_path: Path) -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            work = duty(client, DirectoryKeep(str(tmp_path), SERVING), "ours")
            with pytest.raises(Incomplete, match=r"no MutatingWebhookConfiguration ours; injector webhook"):
                await work.run_once(START)
            assert (tmp_path / "tls.crt").exists()

    asyncio.run(talk())


def test_a_missing_configuration_does_not_hold_up_a_rotation() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            await configuration(api)
            first = await duty(client, None, "ours").run_once(START)
            work = duty(client, None, "ours", "a-tag-that-was-deleted")
            for days in (70, 71):
                with pytest.raises(Incomplete, match="no MutatingWebhookConfiguration a-tag-that-was-deleted"):
                    await work.run_once(START + days * DAY)
            kept = await SecretKeep(client, "istio-system", "certs").load()
            assert kept
            assert kept.authority_key != first.authority_key
            assert bundles(api) == {kept.bundle}

    asyncio.run(talk())


def test_a_configuration_that_cannot_be_told_holds_up_a_rotation() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            await configuration(api)
            await configuration(api, "other")
            work = duty(client, None, "ours", "other")
            first = await work.run_once(START)
            pending = await work.run_once(START + 70 * DAY)
            api.failing = {f"{PATH}/other": 503}
            with pytest.raises(Incomplete, match="other: as the test says"):
                await work.run_once(START + 71 * DAY)
            kept = await SecretKeep(client, "istio-system", "certs").load()
            assert kept == pending
            assert kept.authority_key == first.authority_key

    asyncio.run(talk())


def test_a_refused_secret_is_an_error_with_the_servers_words() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            api.refusals = [(403, 'secrets "certs" is forbidden')]
            with pytest.raises(ApiError, match="is forbidden"):
                await duty(client).run_once(START)

    asyncio.run(talk())


def test_foreign_keys_in_the_secret_stay() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            await api.put(SECRETS, "certs", data={"note": "aGVsbG8="})
            await duty(client).run_once(START)
            data = api.collections[SECRETS]["certs"]["data"]
            assert data["note"] == "aGVsbG8="
            assert set(keep.FIELDS) - {"ca-next.key"} < set(data)

    asyncio.run(talk())


# The command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--once"], "give --secret NAME"),
        (["--once", "--directory", "x"], "give --service NAME, or --dns NAME"),
        (["--once", "--directory", "x", "--dns", "Bad_Name"], "'Bad_Name' is not allowed"),
        (["--once", "--secret", "x", "--dns", "a"], "KUBERNETES_SERVICE_HOST is not set"),
        (["--once", "--secret", "x", "--dns", "a", "--kubeconfig", "/nonexistent"], "/nonexistent"),
    ],
)
def test_wrong_usage_says_what_to_do(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = CliRunner().invoke(certs, arguments)
    assert done.exit_code in (1, 2)
    assert said in done.output
    assert "Traceback" not in done.output


def test_the_command_makes_certificates_a_tls_server_can_use(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "injector", "certs", "--once", "--directory", str(tmp_path), "--dns", "localhost"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "in order" in done.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_material_repeats_no_key_in_its_own_words() -> None:
    """A log line that shows the material must not show a key."""
    material = renew(None, NAMES, LIFETIMES, START, announced=False).material
    assert b"PRIVATE KEY" in material.key
    assert "PRIVATE KEY" not in repr(material)
    assert isinstance(material, Material)
