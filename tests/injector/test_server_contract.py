"""The HTTP contract, asked of a real process over real TLS."""

import asyncio
import gzip
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.injector.serving import SKIPPED, Client, Injector, Reply, make_certificates, review, serving

LIMIT = 6 * 1024 * 1024


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Injector]:
    certificates = tmp_path_factory.mktemp("certificates")
    make_certificates(certificates)
    with serving(certificates) as running:
        yield running
        assert "Traceback" not in running.drain_log()


def ask(injector: Injector, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Reply:
    async def once() -> Reply:
        client = await injector.connect()
        reply = await client.request(path, body, method, **headers)
        await client.close()
        return reply

    return asyncio.run(once())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_review_is_answered_in_its_own_version(injector: Injector, version: str) -> None:
    reply = ask(injector, "/inject", review(SKIPPED, version=version, uid="a-b-c"))
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    answer = reply.json()
    assert answer["apiVersion"] == f"admission.k8s.io/{version}"
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["uid"] == "a-b-c"
    assert answer["response"]["allowed"] is True
    assert "patch" not in answer["response"]


def test_an_injected_pod_gets_a_patch(injector: Injector) -> None:
    response = ask(injector, "/inject", review()).json()["response"]
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    assert response["patch"]


@pytest.mark.parametrize("method", ["POST", "PUT", "GET", "DELETE"])
def test_the_method_is_not_checked(injector: Injector, method: str) -> None:
    assert ask(injector, "/inject", review(SKIPPED), method).json()["response"]["allowed"] is True


def test_no_body(injector: Injector) -> None:
    reply = ask(injector, "/inject")
    assert (reply.status, reply.body.strip()) == (400, b"no body found")


@pytest.mark.parametrize("content_type", ["", "application/json; charset=utf-8", "text/plain", "Application/JSON"])
def test_the_content_type_is_exact(injector: Injector, content_type: str) -> None:
    assert ask(injector, "/inject", review(), Content_Type=content_type).status == 415


def test_an_empty_body_is_found_before_a_wrong_content_type(injector: Injector) -> None:
    assert ask(injector, "/inject", Content_Type="text/plain").status == 400


def test_the_largest_body_is_read_and_one_byte_more_is_not(injector: Injector) -> None:
    assert ask(injector, "/inject", review(SKIPPED).ljust(LIMIT)).json()["response"]["allowed"] is True
    assert ask(injector, "/inject", review(SKIPPED).ljust(LIMIT + 1)).status == 400


def test_a_chunked_body_has_the_same_limit(injector: Injector) -> None:
    def chunked(body: bytes) -> bytes:
        pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
        return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    fields = {"Transfer_Encoding": "chunked", "Content_Length": ""}
    small = ask(injector, "/inject", chunked(review(SKIPPED)), **fields)
    assert small.json()["response"]["allowed"] is True
    assert ask(injector, "/inject", chunked(b" " * (LIMIT + 1)), **fields).status == 400


def test_a_compressed_body_is_not_unpacked(injector: Injector) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    reply = ask(injector, "/inject", bomb, Content_Encoding="gzip")
    assert reply.status == 200
    assert reply.json()["response"]["allowed"] is False


@pytest.mark.parametrize("body", [b"{", b"null", b"[]", b"\xff\xfe", b'{"kind":"Pod","apiVersion":"v1"}', b"0" * 70000])
def test_what_is_no_review_is_denied_in_the_old_shape(injector: Injector, body: bytes) -> None:
    reply = ask(injector, "/inject", body)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    answer = reply.json()
    assert "apiVersion" not in answer
    assert "kind" not in answer
    assert answer["response"]["allowed"] is False
    assert answer["response"]["status"]["message"]


@pytest.mark.parametrize(
    "path", ["/inject", "/inject/", "/inject/cluster/c1/net/n1", "/inject/:ENV:a=b/c", "/inject?timeout=10s"]
)
def test_paths_that_inject(injector: Injector, path: str) -> None:
    assert ask(injector, path, review(SKIPPED)).json()["response"]["allowed"] is True


@pytest.mark.parametrize("path", ["/", "/injected", "/Inject", "/metrics", "/ready/"])
def test_paths_that_do_not(injector: Injector, path: str) -> None:
    assert ask(injector, path, review()).status == 404


def test_ready_tells_about_settings_and_certificate(injector: Injector) -> None:
    reply = ask(injector, "/ready", method="GET")
    assert reply.status == 200
    assert reply.json()["settings"] == {"applied": True}
    assert "expires" in reply.json()["certificate"]


def test_a_client_may_ask_before_it_sends(injector: Injector) -> None:
    async def talk() -> None:
        client = await injector.connect()
        body = review(SKIPPED)
        client.send("/inject", b"", Expect="100-continue", Content_Length=str(len(body)))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await client.reply()).json()["response"]["allowed"] is True
        await client.close()

    asyncio.run(talk())


def test_pipelined_requests_are_answered_in_order(injector: Injector) -> None:
    async def talk() -> list[str]:
        client = await injector.connect()
        for number in range(50):
            client.send("/inject", review(SKIPPED, uid=str(number)))
        uids = [(await client.reply()).json()["response"]["uid"] for _ in range(50)]
        await client.close()
        return uids

    assert asyncio.run(talk()) == [str(number) for number in range(50)]


@pytest.mark.parametrize("version, works", [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_versions(injector: Injector, version: ssl.TLSVersion, works: bool) -> None:
    async def talk() -> None:
        context = ssl.create_default_context(cafile=str(injector.trust))
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # so that the client itself would still speak 1.1
        context.minimum_version = context.maximum_version = version
        opened = await asyncio.open_connection("127.0.0.1", injector.port, ssl=context, server_hostname="localhost")
        client = Client(*opened)
        assert (await client.request("/ready", method="GET")).status == 200
        await client.close()

    if works:
        asyncio.run(talk())
    else:
        with pytest.raises(OSError):  # an alert, or a plain reset
            asyncio.run(talk())


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"\x16\x03\x01\x00\x05hello"])
def test_what_is_no_tls_is_cut_off(injector: Injector, junk: bytes) -> None:
    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", injector.port)
        writer.write(junk)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    assert b"HTTP" not in asyncio.run(talk())


def test_bad_http_is_refused_without_a_traceback(injector: Injector) -> None:
    async def talk(raw: bytes) -> bytes:
        client = await injector.connect()
        client.writer.write(raw)
        answer = await client.reader.read(12)
        await client.close()
        return answer

    for raw in (b"nonsense\r\n\r\n", b"POST /inject HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"GET /" + b"a" * 20000):
        assert asyncio.run(talk(raw)).endswith(b" 400")
    assert "Traceback" not in injector.drain_log()


def test_what_happened_is_counted(tmp_path: Path) -> None:
    async def talk(injector: Injector) -> tuple[dict[str, float], dict[str, float]]:
        client = await injector.connect()
        before = await injector.metrics()
        for body in (review(SKIPPED), review(SKIPPED), review(), b"{", b""):
            await client.request("/inject", body)
        await client.request("/inject", b"{}", Content_Type="text/plain")
        await client.close()
        return before, await injector.metrics()

    make_certificates(tmp_path)
    with serving(tmp_path) as injector:
        before, after = asyncio.run(talk(injector))
    counted = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    wanted = {"requests": 6, "skip": 2, "success": 1, "failure": 1}
    for name, count in wanted.items():
        assert counted[f"sidecar_injection_{name}_total"] == count
    assert counted['initless_injector_refused_total{reason="empty"}'] == 1
    assert counted['initless_injector_refused_total{reason="media_type"}'] == 1
    assert counted["sidecar_injection_time_seconds_count"] == 4
    assert 'sidecar_injection_time_seconds_bucket{le="0.0001"}' in after
    assert after["initless_injector_certificate_expiry_timestamp_seconds"] > 0


def test_a_denied_pod_can_be_found_in_the_log(injector: Injector) -> None:
    owners = [
        {"apiVersion": "v1", "kind": "Other", "name": "not-this"},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9", "controller": True},
    ]
    annotations = {"sidecar.istio.io/proxyCPU": "much\nlevel=error forged" + "x" * 5000}
    metadata = {"generateName": "web-5d9-", "ownerReferences": owners, "annotations": annotations}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "app", "image": "app:1"}]}}
    assert ask(injector, "/inject", review(pod)).json()["response"]["allowed"] is False
    line = injector.wait_for("review denied")
    for words in ("reason=invalid", "pod=demo/web-5d9-", "owner=ReplicaSet/web-5d9", "sidecar.istio.io/proxyCPU"):
        assert words in line
    assert "much" in line
    assert len(line) < 2000


def test_a_pod_that_cannot_be_read_is_denied_by_its_namespace(injector: Injector) -> None:
    assert ask(injector, "/inject", review({"spec": {"containers": 1}})).json()["response"]["allowed"] is False
    line = injector.wait_for("review denied")
    assert "reason=undecodable" in line
    assert "pod=demo/" in line
    assert "$.request.object.spec.containers" in line


def test_skips_are_counted_by_reason(injector: Injector) -> None:
    name = 'initless_injector_skips_total{reason="asked-not"}'
    before = asyncio.run(injector.metrics())[name]
    ask(injector, "/inject", review(SKIPPED))
    assert asyncio.run(injector.metrics())[name] == before + 1
